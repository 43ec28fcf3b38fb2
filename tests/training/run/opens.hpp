#pragma once

#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>

namespace annulus::training::test {

/// How often each file of a folder has been opened since this was made, by anybody.
class Opens {
 public:
  explicit Opens(const std::filesystem::path& folder)
      : descriptor_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    // Closing is watched too, since events that follow their like are one.
    if (::inotify_add_watch(descriptor_, folder.c_str(), IN_OPEN | IN_CLOSE) < 0)
      throw std::runtime_error("no inotify");
  }
  Opens(const Opens&) = delete;
  Opens& operator=(const Opens&) = delete;
  ~Opens() { ::close(descriptor_); }

  std::map<std::string, int> count() {
    alignas(inotify_event) std::array<char, 65536> bytes;
    for (ssize_t size = 0; (size = ::read(descriptor_, bytes.data(), bytes.size())) > 0;)
      for (ssize_t at = 0; at < size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(bytes.data() + at);
        if ((event->mask & IN_OPEN) != 0 && event->len > 0) ++counts_[event->name];
        at += static_cast<ssize_t>(sizeof *event) + event->len;
      }
    return counts_;
  }

 private:
  int descriptor_;
  std::map<std::string, int> counts_;
};

}  // namespace annulus::training::test
