#pragma once

#include <fmt/format.h>

#include <array>
#include <cmath>

#include <annulus/base/error.hpp>
#include <annulus/core/own_instance.hpp>
#include <annulus/core/region.hpp>
#include <annulus/model/flops.hpp>
#include <annulus/model/llama.hpp>
#include <annulus/optim/clip.hpp>

#include "train/learner.hpp"
#include "train/sequence_attention.hpp"
#include "train/tensor_hashes.hpp"
#include "train/weights.hpp"

namespace annulus::train {

template <class Exec, class T>
class LearnerOn final : public Learner {
 public:
  LearnerOn(comm::Communicator& world, comm::Communicator& context, const Config& config,
            const AttentionInputs& inputs)
      : world_(world),
        context_(context),
        config_(config),
        attention_(exec_, context, config, inputs),
        llama_(exec_, config.model, attention_.plans().rows()),
        weights_(exec_, llama_.parameter_map(), config.adamw()),
        hashes_(exec_, llama_.parameter_map()),
        clipper_(config.train.clip_norm) {}

  const model::ParameterMap& map() const override { return llama_.parameter_map(); }
  const SequencePlans& plans() const override { return attention_.plans(); }

  std::string description() const override {
    std::string device = Exec::name();
    if constexpr (requires { exec_.cuda_device_prop(); }) device = exec_.cuda_device_prop().name;
    return fmt::format("{} in {}, attention kernel {}", device, config_.train.dtype, name_of(kernel()));
  }
  attention::Kernel kernel() const override { return attention_.kernel(); }
  std::string warning() const override { return attention_.warning(); }

  void initialize() override {
    weights_.initialize(exec_, map(), static_cast<std::uint64_t>(config_.run.seed));
  }
  Buffers buffers() const override { return weights_.buffers(exec_); }
  void restored(std::int64_t steps) override { weights_.restored(exec_, world_, steps); }

  std::vector<std::uint64_t> tensor_hashes() const override { return hashes_.of(exec_, weights_.state()); }

  StepResult update(std::int64_t step, double learning_rate, std::span<const data::Sequence> sequences,
                    trace::Recorder* recorder) override {
    attention_.reset_times();
    StepResult result;
    // The mean is over all valid targets of all ranks and micro-batches, so it is known before the first
    // gradient.
    for (const auto& sequence : sequences)
      for (const std::int32_t target : sequence.targets) result.targets += target != data::ignored_target;
    result.targets = world_.all_reduce_value(result.targets, comm::ReduceOp::sum);
    if (recorder != nullptr) record(*recorder, "parameters/", weights_.master());
    const Sums sums =
        learn(sequences, result.targets > 0 ? 1.0f / static_cast<float>(result.targets) : 0.0f, recorder);
    require_finite(step, "loss", std::isfinite(sums.loss));
    share(sums, result);
    if (recorder != nullptr) recorder->number("loss", result.loss);

    // The sum over all ranks hides whose gradient went wrong first, so each rank looks at its own.
    require_finite(step, "gradient norm", clipper_.measure(exec_, weights_.gradients()).finite());
    {
      const Region region("annulus::train::reduce_gradients");
      world_.all_reduce(exec_, weights_.gradients());
    }
    if (recorder != nullptr) record(*recorder, "gradients/", weights_.gradients());
    const optim::Clipping clipping = clipper_.measure(exec_, weights_.gradients());
    require_finite(step, "gradient norm", clipping.finite());
    result.gradient_norm = clipping.norm;
    result.learning_rate = learning_rate;
    {
      const Region region("annulus::train::update");
      weights_.update(exec_, learning_rate, clipping.scale);
    }
    exec_.fence("annulus::train::update: its time is taken");
    result.waiting_seconds = attention_.waiting_seconds();
    result.planning_seconds = attention_.planning_seconds();
    return result;
  }

 private:
  // Of this rank's sequences.
  struct Sums {
    double loss = 0;   // nats
    double pairs = 0;  // (query, key) of one head, the whole group's
  };

  // Parameter by parameter.
  void record(trace::Recorder& recorder, const std::string& group,
              const Array1<const float, Exec>& flat) const {
    for (const model::Parameter& p : map().all()) {
      const float* const values = flat.data() + p.offset;
      if (p.rows == 1)
        recorder.whole(exec_, group + p.name, Array1<const float, Exec>(values, p.columns));
      else
        recorder.whole(exec_, group + p.name, Array2<const float, Exec>(values, p.rows, p.columns));
    }
  }

  // What this rank reads of a sequence, the `micro_batch`-th of its group in this update.
  void record(trace::Recorder& recorder, const data::Sequence& sequence, std::int64_t micro_batch) const {
    const auto ids = [](const std::vector<std::int32_t>& of) {
      return Array1<const std::int32_t, HostExec>(of.data(), of.size());
    };
    const int groups = world_.size() / context_.size(), group = world_.rank() / context_.size();
    recorder.set_rows(micro_batch * groups + group, attention_.plans().rows());
    recorder.rows(HostExec(), "tokens", ids(sequence.tokens));
    recorder.rows(HostExec(), "targets", ids(sequence.targets));
  }

  // Leaves this rank's share of the gradient in the buffer.
  Sums learn(std::span<const data::Sequence> sequences, float grad_scale, trace::Recorder* recorder) {
    Sums sums;
    Kokkos::deep_copy(exec_, weights_.gradients(), 0.0f);
    model::WholeParameters<Exec, T> parameters(map(), weights_.compute(), weights_.gradients());
    for (const auto& sequence : sequences) {
      if (recorder != nullptr) record(*recorder, sequence, &sequence - sequences.data());
      auto& attention = attention_.for_sequence(exec_, sequence.document_starts);
      llama_.train(exec_, {.tokens = sequence.tokens, .targets = sequence.targets}, grad_scale,
                   {.attention = attention, .parameters = parameters, .recorder = recorder});
      sums.pairs += double(attention_.plans().pairs());
    }
    sums.loss = llama_.take_loss(exec_).sum;
    return sums;
  }

  // Loss and operations of the whole update.
  void share(const Sums& mine, StepResult& result) const {
    std::array<double, 2> sums{mine.loss, mine.pairs / context_.size()};
    world_.all_reduce(HostExec(), sums.data(), sums.size(), DType::f64, comm::ReduceOp::sum);
    result.loss = sums[0] / std::max<double>(1.0, double(result.targets));
    result.flops =
        model::attention_flops(config_.model, sums[1]) + model::dense_flops(config_.model, update_tokens());
  }

  std::int64_t update_tokens() const {
    return world_.size() / context_.size() * config_.train.micro_batches * config_.data.sequence_length;
  }

  // Ends the run on all ranks when any of them saw a number that is not finite.
  void require_finite(std::int64_t step, const char* what, bool finite) const {
    const std::int32_t first =
        world_.all_reduce_value<std::int32_t>(finite ? world_.size() : world_.rank(), comm::ReduceOp::min);
    if (first == world_.size()) return;
    fail(
        "the {} of step {} is not finite; rank {} is the lowest that saw it. No update was made and the "
        "checkpoints are as they were: branch off an earlier one with a lower train.lr, a longer "
        "train.warmup_steps or a smaller train.clip_norm (--resume FILE --set run.folder=NEW), and look at "
        "the data of this step",
        what, step, first);
  }

  const OwnInstance<Exec> instance_;  // a stream for each rank: ranks of a test are threads of one process
  const Exec& exec_ = *instance_;
  comm::Communicator &world_, &context_;
  const Config config_;
  SequenceAttention<Exec, T> attention_;
  model::Llama<Exec, T> llama_;
  Weights<Exec, T> weights_;
  TensorHashes<Exec> hashes_;
  optim::GradientClipper<Exec> clipper_;
};

template <class Exec, class T>
std::unique_ptr<Learner> make_learner_on(comm::Communicator& world, comm::Communicator& context,
                                         const Config& config, const AttentionInputs& inputs) {
  return std::make_unique<LearnerOn<Exec, T>>(world, context, config, inputs);
}

}  // namespace annulus::train
