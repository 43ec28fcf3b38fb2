#include "comm/workspace.hpp"

#include <exception>

#include <annulus/core/tensor.hpp>

namespace annulus::comm {

namespace {

template <class Bytes, class Exec>
std::byte* grown(Bytes& memory, const Event& used, const Exec& exec, std::size_t bytes) {
  if (!memory.allocated() || memory.view().size() < bytes) {
    used.wait();
    memory = Bytes();  // before the new one is there, not beside it
    memory = Bytes::uninitialized(exec, MemoryCategory::communication, "annulus::comm::workspace", bytes);
  }
  return memory.view().data();
}

}  // namespace

Workspace::Use::Use(Workspace& workspace, const Queue& queue, std::size_t bytes)
    : workspace_(workspace), queue_(queue) {
  if (queue.is_host()) {
    data_ = grown(workspace.host_, Event(), HostExec(), bytes);
  } else {
    data_ = grown(workspace.device_, workspace.used_, Kokkos::DefaultExecutionSpace(), bytes);
    workspace.used_.hold(queue);
  }
}

Workspace::Use::~Use() {
  if (queue_.is_host() || std::uncaught_exceptions() > 0) return;
  try {
    workspace_.used_.record(queue_);
  } catch (const std::exception&) {  // a device that no longer works: the next call says so
  }
}

}  // namespace annulus::comm
