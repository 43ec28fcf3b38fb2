#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/agreement.hpp"

namespace annulus::training {

/// Calls action(). What it throws, as text; empty where it returns.
template <class Action>
std::string problem_of(const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

/// Calls action() on this rank; where it throws on any, all ranks throw Error. Collective.
template <class Action>
void together(comm::Communicator& world, const Action& action) {
  comm::throw_together(world, problem_of(action));
}

/// The text of rank 0, on all ranks. Collective.
inline std::string share_text(comm::Communicator& world, std::string text) {
  auto size = static_cast<std::int64_t>(text.size());
  world.broadcast(HostExec(), &size, sizeof size, 0);
  text.resize(static_cast<std::size_t>(size));
  if (size > 0) world.broadcast(HostExec(), text.data(), text.size(), 0);
  return text;
}

}  // namespace annulus::training
