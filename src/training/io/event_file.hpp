#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/system/descriptor.hpp"

namespace annulus::io {

/// Writes numbers by optimizer step into a file of events, as TensorBoard reads it: TFRecords that hold
/// `Event` messages (tensorflow/core/util/event.proto). Every record goes out in one write, so that
/// TensorBoard may follow the file, and a crash leaves at most the last record torn.
class EventFile {
 public:
  /// Starts a new file, `events.out.tfevents.SECONDS.HOST.PROCESS`, in `folder`. Of earlier files there,
  /// TensorBoard drops what comes after `step`, which the run is about to write again. Throws Error naming
  /// the file when it cannot be written.
  EventFile(const std::filesystem::path& folder, std::int64_t step);

  /// Appends the numbers of `record`, an object, as scalars of `step`: number `key` as `group/key`, number
  /// `inner` of an object `key` as `key/inner`, deeper ones as `key/inner/…`; all else is left out. Throws
  /// Error naming the file when it cannot be written; the file then ends with the last complete record.
  void write(std::int64_t step, const std::string& group, const nlohmann::json& record);

 private:
  void append(const std::string& event);

  std::string path_;
  Descriptor file_{-1};
};

}  // namespace annulus::io
