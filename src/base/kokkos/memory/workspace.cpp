#include "base/kokkos/memory/workspace.hpp"

#include <exception>
#include <utility>

#include <annulus/base/kokkos/tensor.hpp>

namespace annulus {

Workspace::Workspace(MemoryCategory category, std::string label)
    : category_(category), label_(std::move(label)) {}

template <class Space, class Exec>
std::byte* Workspace::grown(Bytes<Space>& block, const Event& used, const Exec& exec,
                            std::size_t bytes) const {
  if (!block.allocated() || block.view().size() < bytes) {
    used.wait();
    block = Bytes<Space>();  // before the new one is there, not beside it
    block = Bytes<Space>::uninitialized(exec, category_, label_, bytes);
  }
  return block.view().data();
}

Workspace::Use::Use(Workspace& workspace, const Queue& queue, std::size_t bytes)
    : workspace_(workspace), queue_(queue) {
  if (queue.is_host()) {
    data_ = workspace.grown(workspace.host_, Event(), HostExec(), bytes);
  } else {
    const auto* const exec = queue.instance<DeviceExec>();  // memory is there in its order, and others wait
    data_ =
        workspace.grown(workspace.device_, workspace.used_, exec != nullptr ? *exec : DeviceExec(), bytes);
    workspace.used_.block(queue);
  }
}

Workspace::Use::~Use() {
  if (queue_.is_host() || std::uncaught_exceptions() > 0) return;
  try {
    workspace_.used_.record(queue_);
  } catch (const std::exception&) {  // a device that no longer works: the next call says so
  }
}

}  // namespace annulus
