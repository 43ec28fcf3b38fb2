#pragma once

#include <cstdint>
#include <string>

#include <annulus/comm/communicator.hpp>

namespace annulus::train {

/// The text of rank 0, on all ranks. Collective.
inline std::string share_text(comm::Communicator& world, std::string text) {
  auto size = static_cast<std::int64_t>(text.size());
  world.broadcast(HostExec(), &size, sizeof size, 0);
  text.resize(static_cast<std::size_t>(size));
  if (size > 0) world.broadcast(HostExec(), text.data(), text.size(), 0);
  return text;
}

}  // namespace annulus::train
