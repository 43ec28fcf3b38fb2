#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include <annulus/base/kokkos/queue.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "training/dump/recorder.hpp"
#include "training/model/layers/layer_tensors.hpp"

namespace annulus::model {

/// Hands tensors of this rank's rows to a recorder, where there is one, and puts those together that are
/// computed in chunks.
class RowRecorder {
 public:
  /// Records a pass over so many rows, until the next call; null: nothing is recorded.
  void start(dump::Recorder* recorder, std::int64_t rows) {
    recorder_ = recorder;
    rows_ = rows;
  }
  /// Names of the next tensors begin with this.
  void set_layer(int layer) {
    if (recorder_ != nullptr) prefix_ = fmt::format("layers.{}.", layer);
  }
  void set_no_layer() { prefix_.clear(); }

  bool records() const { return recorder_ != nullptr; }
  /// Whether tensors with so many fp32 numbers a token are small enough: 256 MiB of a whole step. All ranks
  /// find the same.
  bool has_room_for(std::int64_t numbers_a_token) const {
    constexpr std::int64_t most = std::int64_t{256} << 20, size = sizeof(float);
    return recorder_ != nullptr &&
           recorder_->sequences().count * recorder_->sequences().tokens <= most / size / numbers_a_token;
  }

  /// All rows of a tensor. Waits for `exec`.
  template <class Exec, class ViewType>
  void all(const Exec& exec, const char* name, const ViewType& view) const {
    if (recorder_ != nullptr) recorder_->rows(exec, prefix_ + name, view);
  }
  /// All rows of (sequences, heads, tokens, …), the first `columns` of each. Waits for `exec`.
  template <class Exec, class E>
  void heads(const Exec& exec, const char* name, const Array4<E, Exec>& view, int columns) const {
    if (recorder_ == nullptr || view.extent_int(3) == columns) return all(exec, name, view);
    using Value = std::remove_const_t<E>;
    std::vector<Value> whole(view.size());
    Queue(exec).copy_to_host(whole.data(), view.data(), view.size() * sizeof(E));
    exec.fence("annulus::model: a tensor is recorded");
    const Array4<Value, HostExec> part(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, "annulus::model::recorded"), view.extent(0),
        view.extent(1), view.extent(2), columns);
    const std::size_t width = view.extent(3), kept = part.extent(3);
    for (std::size_t row = 0; row * kept < part.size(); ++row)
      std::copy_n(whole.data() + row * width, kept, part.data() + row * kept);
    all(HostExec(), name, part);
  }
  /// Rows of a chunk: (chunk, columns). The last one completes the tensor. Waits for `exec`.
  template <class Exec, class T>
  void chunk(const Exec& exec, const char* name, const Array2<T, Exec>& view, Chunk of) {
    if (recorder_ == nullptr) return;
    if (of.count == rows_) return all(exec, name, view);
    std::vector<std::byte>& bytes = parts_[name];
    const std::size_t row = view.extent(1) * sizeof(T);
    bytes.resize(static_cast<std::size_t>(rows_) * row);
    Queue(exec).copy_to_host(bytes.data() + static_cast<std::size_t>(of.first) * row, view.data(),
                             view.size() * sizeof(T));
    exec.fence("annulus::model: a chunk is recorded");
    if (of.first + of.count < rows_) return;
    recorder_->rows(
        HostExec(), prefix_ + name,
        Array2<const T, HostExec>(reinterpret_cast<const T*>(bytes.data()), rows_, view.extent(1)));
    parts_.erase(name);
  }

 private:
  dump::Recorder* recorder_ = nullptr;
  std::int64_t rows_ = 0;
  std::string prefix_;
  std::map<std::string, std::vector<std::byte>> parts_;  // of tensors that are not complete
};

}  // namespace annulus::model
