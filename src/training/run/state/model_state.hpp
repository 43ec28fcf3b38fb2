#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "training/checkpoint/manifest.hpp"
#include "training/model/parameter_access.hpp"
#include "training/model/parameters.hpp"
#include "training/optimizer/clip.hpp"
#include "training/run/state/flat_buffer.hpp"
#include "training/run/state/replicas.hpp"

namespace annulus::training {

/// Channels of the communicator of all ranks. Attention has those of its context-parallel group, which is a
/// communicator of its own; channel 0 carries dumps (dump::Recorder).
struct WorldChannels {
  static constexpr int sharding = 1;  ///< weights and gradients, in memory of the device
};

/// Weights, gradients and optimizer state of a run: the model states of Rajbhandari et al. (ZeRO), whole on
/// every rank or in shards, as parallel.zero says. What a run does around the optimizer steps (checkpoints,
/// comparisons) sees this much of them, and knows neither device nor type. All work is enqueued on the stream
/// of the learner; every call but those that say so is collective over all ranks of the run.
class ModelState {
 public:
  virtual ~ModelState() = default;

  /// How they are held, for the log; empty where every rank holds everything.
  virtual std::string description() const = 0;

  /// Initial values: normal, a pure function of the seed.
  virtual void initialize(std::uint64_t seed) = 0;

  /// What this rank writes of a checkpoint, and reads of one: the shares of all ranks have every element of
  /// the model once. In order; offsets are those in master_buffers. Not collective.
  virtual std::vector<checkpoint::Slice> share() const = 0;
  /// This rank's master weights and moments. Not collective.
  virtual Buffers master_buffers() = 0;
  /// Every rank has filled its share with the state after `steps` updates of the optimizer: all resume from
  /// it.
  virtual void restored(std::int64_t steps) = 0;
  /// update() asks it before master_buffers change (optimizer::MasterWeights::set_gate). Not collective.
  virtual void set_gate(std::function<void(std::int64_t end)> gate) = 0;

  /// Hashes (tensor_hashes) of everything that several ranks hold alike, as many on every rank. Not
  /// collective.
  virtual std::vector<Copies> copies() = 0;
  /// For tests: the weights that this rank computes with where it keeps them in fp32, else its master
  /// weights; and its moments. Not collective.
  virtual Buffers held_buffers() = 0;
};

/// The state on a device, with weights of type T: what an optimizer step asks for.
template <class Exec, class T>
class ModelStateOn : public ModelState {
 public:
  explicit ModelStateOn(const Exec& exec) : exec_(exec) {}

  /// What the model asks for weights and gives its gradients to, sequence by sequence of an optimizer step.
  virtual model::ParameterAccess<Exec, T>& access() = 0;

  /// Seconds since reset_times for which compute waited for shards of other ranks. Not collective.
  virtual void reset_times() = 0;
  virtual double exposed_seconds() = 0;

  /// An optimizer step: forget_gradients, the sequences, reduce_gradients, measure, update.
  virtual void forget_gradients() = 0;
  /// Sums over all ranks, in the order that parallel.sums says.
  virtual void reduce_gradients() = 0;
  /// The last element of the model whose gradient was not finite on this rank before it was summed over ranks
  /// (optimizer::NonFinite); −1: none. Of this rank alone. Waits for the stream.
  virtual std::int64_t non_finite() const = 0;
  /// The norm of the sums. Waits for the stream.
  virtual optimizer::Clipping measure(optimizer::GradientClipper<Exec>& clipper) = 0;
  virtual void update(double learning_rate, float gradient_scale) = 0;

  /// Calls `use` with every tensor of the master weights or of the reduced gradients, in order of their
  /// offsets: on rank 0, on others it may not be called.
  enum class Tensors : std::uint8_t { master_weights, gradients };
  using UseTensor = std::function<void(const model::Parameter&, const float* values)>;
  virtual void for_each_tensor(Tensors which, const UseTensor& use) = 0;

 protected:
  const Exec exec_;
};

}  // namespace annulus::training
