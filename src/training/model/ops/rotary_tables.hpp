#pragma once

#include <cstdint>

#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/kokkos/queue.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/training/model/config.hpp>

#include "base/kokkos/memory/memory.hpp"
#include "training/model/model_arrays.hpp"
#include "training/model/ops.hpp"

namespace annulus::model {

/// The angles of a rank's rows, for each kind of layer: those of all sequences, or, where every sequence has
/// positions of its own, those of the sequences of a pass.
template <class Exec>
class RotaryTables {
 public:
  /// `positions`: of every sequence, or of the first pass' sequences, which have as many.
  RotaryTables(const Exec& exec, const Config& config, const PositionMap& positions, int sequences,
               bool own_positions)
      : ropes_(layer_ropes(config)),
        rows_((own_positions ? sequences : 1) * positions.count),
        sequences_(own_positions ? sequences : 1) {
    const ArrayTable arrays = rotary_arrays(config, positions.count, sequences, own_positions);
    cosine_ = allocate<float>(exec, arrays[0]);
    sine_ = allocate<float>(exec, arrays[1]);
    if (!own_positions) {
      for (int i = 0; i < std::ssize(ropes_.distinct); ++i)
        rope_table(exec, positions, ropes_.distinct[static_cast<std::size_t>(i)], angles(cosine_, i),
                   angles(sine_, i));
      return;
    }
    inverse_ = allocate<float>(exec, arrays[2]);
    for (int i = 0; i < std::ssize(ropes_.distinct); ++i)
      Queue(exec).copy_from_host(inverse(i).data(), distinct(i).inverse.data(),
                                 distinct(i).inverse.size() * sizeof(float));
    exec.fence("annulus::model::RotaryTables: the frequencies on the host may go away");
  }

  /// The positions of all rows of the next pass, where sequences have their own: (sequences · tokens).
  void set(const Exec& exec, const Array1<const std::int32_t, Exec>& positions) {
    for (int i = 0; i < std::ssize(ropes_.distinct); ++i)
      rope_table(exec, positions, Array1<const float, Exec>(inverse(i)), distinct(i).attention_factor,
                 angles(cosine_, i), angles(sine_, i));
  }

  RopeTable<Exec> of_layer(int layer) const {
    const int rope = ropes_.of_layer[static_cast<std::size_t>(layer)];
    return {angles(cosine_, rope), angles(sine_, rope), sequences_};
  }

 private:
  const RopeFrequencies& distinct(int rope) const { return ropes_.distinct[static_cast<std::size_t>(rope)]; }
  static std::int64_t size(const RopeFrequencies& frequencies) { return std::ssize(frequencies.inverse); }
  /// Frequencies of the ropes before this one.
  std::int64_t before(int rope) const {
    std::int64_t count = 0;
    for (int i = 0; i < rope; ++i) count += size(distinct(i));
    return count;
  }
  Array1<float, Exec> inverse(int rope) const {
    return Array1<float, Exec>((*inverse_).data() + before(rope), size(distinct(rope)));
  }
  Array2<float, Exec> angles(const Owned<Array1<float, Exec>>& array, int rope) const {
    return Array2<float, Exec>((*array).data() + rows_ * before(rope), rows_, size(distinct(rope)));
  }

  LayerRopes ropes_;
  std::int64_t rows_;                         // of a table
  int sequences_;                             // of a table
  Owned<Array1<float, Exec>> cosine_, sine_;  // of each rope (rows, frequencies)
  Owned<Array1<float, Exec>>
      inverse_;  // of each rope (frequencies), where sequences have their own positions
};

}  // namespace annulus::model
