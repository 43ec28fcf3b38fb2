#pragma once

#include <memory>

#include <annulus/attention/comm/communicator.hpp>

namespace annulus::comm {

/// The communicator of one rank on its own; exchanges with itself are copies.
std::unique_ptr<Communicator> make_null();

}  // namespace annulus::comm
