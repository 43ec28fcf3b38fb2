#pragma once

#include <cstdint>
#include <memory>

#include <annulus/io/progress_line.hpp>

namespace annulus::weights_program {

/// A train::Seen that shows a line on a terminal, until the last copy of it goes.
class Progress {
 public:
  Progress(const char* what, std::int64_t elements)
      : line_(std::make_shared<io::ProgressLine>(what, bytes_of(elements))) {}

  void operator()(std::int64_t elements) const { line_->show(bytes_of(elements)); }

 private:
  static std::int64_t bytes_of(std::int64_t elements) {
    return elements * static_cast<std::int64_t>(sizeof(float));
  }
  std::shared_ptr<io::ProgressLine> line_;
};

}  // namespace annulus::weights_program
