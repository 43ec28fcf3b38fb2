#pragma once

#include <Kokkos_Core.hpp>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace annulus::test {

/// What callbacks of Kokkos' tools note, any thread's, while an object of class Who lives. One at a time.
template <class Who>
class ToolNotes {
 public:
  ToolNotes() { clear(); }
  ToolNotes(const ToolNotes&) = delete;
  ToolNotes& operator=(const ToolNotes&) = delete;

  /// Labels in their order.
  std::vector<std::string> labels() const {
    const std::lock_guard lock(mutex_);
    return labels_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    labels_.clear();
  }

 protected:
  static void note(std::string label) {
    const std::lock_guard lock(mutex_);
    labels_.push_back(std::move(label));
  }

 private:
  static inline std::mutex mutex_;
  static inline std::vector<std::string> labels_;
};

}  // namespace annulus::test
