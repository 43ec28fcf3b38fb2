#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "training/model/parameters.hpp"
#include "training/optimizer/master_weights.hpp"
#include "training/optimizer/muon.hpp"
#include "training/parameter_sharding/flat_ranges.hpp"
#include "training/parameter_sharding/partition.hpp"

namespace annulus::parameter_sharding {

/// The sizes of the matrices that Muon updates, those of layers; none where it does not (Updates::muon).
optimizer::MuonSizes muon_sizes(const model::ParameterMap& map, const Updates& updates);
/// Operations of all of them in an optimizer step, and their elements.
struct MuonWork {
  double flops = 0, elements = 0;
};
MuonWork muon_work(const model::ParameterMap& map, const Updates& updates);

/// Muon on the matrices of layers in a flat buffer, or in shards of it:
///   M ← μ M + g,   U = g + μ M (Nesterov),   W ← (1 − lr · weight_decay) W − lr · muon_scale · O,
/// O the orthogonal factor of U (optimizer::Orthogonalizer). A matrix is a tensor of the model: q, k and v
/// apart, gate and up, too. In shards each matrix is gathered whole by one rank, the ranks in turns, which
/// sends the others their parts of O: the bits are those of the whole. M is the first moment of checkpoints;
/// the second one stays 0.
template <class Exec>
class MuonShards {
 public:
  struct Options {
    double weight_decay = 0.1;
    DType products = DType::f32;          ///< the type that optimizer::Orthogonalizer multiplies
    comm::Communicator* ranks = nullptr;  ///< that the shards lie on; null: this rank holds everything
    int channel = 0;                      ///< of `ranks`
  };
  /// `partition`: over one rank where everything is here.
  MuonShards(const model::ParameterMap& map, const Partition& partition, const Updates& updates,
             const Options& options);

  /// A step with gradient_scale · gradients on this rank's masters and their first moment, which are not
  /// offloaded. `gradients` (size) are written to: what is left of those of matrices is O. Collective over
  /// the ranks.
  template <class T>
  void step(const Exec& exec, const optimizer::MasterWeights<Exec, T>& masters,
            const Array1<float, Exec>& gradients, double learning_rate, float gradient_scale);

 private:
  /// Elements of a matrix that a rank holds: from `first` of the matrix, from `offset` of its shard.
  struct Piece {
    std::int64_t first = 0, count = 0, offset = 0;
  };
  struct Matrix {
    std::int64_t rows, columns;
    bool decay;
    std::vector<Piece> pieces;  // of each rank
  };
  int rank() const { return options_.ranks == nullptr ? 0 : options_.ranks->rank(); }
  const Piece& own(const Matrix& matrix) const { return matrix.pieces[static_cast<std::size_t>(rank())]; }
  void make_orthogonal(const Exec& exec, const Array1<float, Exec>& updates);
  /// Each rank its matrix of the round: the parts of it to whoever makes it orthogonal, or back.
  void exchange(const Exec& exec, std::span<const Matrix> round, const Array1<float, Exec>& shard,
                float* matrix, bool back) const;

  Options options_;
  float momentum_;
  std::vector<Matrix> matrices_;  // the largest first, so that those of a round are alike
  optimizer::Orthogonalizer<Exec> orthogonalizer_;
};

}  // namespace annulus::parameter_sharding
