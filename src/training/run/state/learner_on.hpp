#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/training/model/config.hpp>

#include "base/kokkos/execution/own_instance.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/execution/region_times.hpp"
#include "base/kokkos/pack.hpp"
#include "training/model/model.hpp"
#include "training/model/model_arrays.hpp"
#include "training/optimizer/clip.hpp"
#include "training/parameter_sharding/unit_schedule.hpp"
#include "training/run/passes/device_text.hpp"
#include "training/run/passes/sequence_attention.hpp"
#include "training/run/passes/sequence_model.hpp"
#include "training/run/planner/memory_trace.hpp"
#include "training/run/state/learner.hpp"
#include "training/run/state/replicated_state.hpp"
#include "training/run/state/sharded_state.hpp"
#include "training/run/state/step_parts.hpp"

namespace annulus::training {

/// Makes the state that `run.step.state` asks for. `backward` has the gradients.
template <class Exec, class T>
std::unique_ptr<ModelStateOn<Exec, T>> make_model_state(
    const Exec& exec, comm::Communicator& world, const model::ParameterMap& map, const ResolvedRun& run,
    std::shared_ptr<model::BackwardMemory<Exec>> backward) {
  const parameter_sharding::StateLayout& state = run.step.state;
  const comm::Sums sums = state.native_sums ? comm::Sums::native : comm::Sums::rank_order;
  const optimizer::MasterOptions options{.adamw = run.optimizer.adamw, .offload = state.offload};
  if (state.stage == 0)
    return std::make_unique<ReplicatedState<Exec, T>>(exec, world, map, options, run.step.updates, sums,
                                                      std::move(backward));
  return std::make_unique<ShardedState<Exec, T>>(exec, ShardGroups(world, state.ranks), map,
                                                 static_cast<parameter_sharding::Stage>(state.stage), options,
                                                 run.step.updates, sums, std::move(backward));
}

/// What layers keep on this rank, and the gradients; with room for the activations of a validation that has
/// plans of its own.
template <class Exec, class T>
std::shared_ptr<model::BackwardMemory<Exec>> make_backward_memory(const Exec& exec, const PositionMap& rows,
                                                                  const prediction::Setting& step,
                                                                  const SequencePlans* validation) {
  constexpr bool on_host = annulus::detail::host_memory<Exec>;
  const model::PassRows pass{.sequences = step.sequences,
                             .tokens = rows.count,
                             .early = rows.rows_below(step.activations.early_positions)};
  return std::make_shared<model::BackwardMemory<Exec>>(
      exec, model::model_arrays(step.model, pass, dtype_of<T>, step.activations, step.passes, on_host).kept,
      parameter_sharding::unit_arrays(step.model, step.state, step.passes).held,
      validation == nullptr
          ? 0
          : bytes_of(model::model_arrays(step.model, {.tokens = validation->rows().count}, dtype_of<T>,
                                         step.activations.without_backward(), 1, on_host)
                         .kept));
}

/// Evaluates with the model that trains, or with one of its own that it holds.
template <class Exec, class T>
class EvaluatorOn final : public Evaluator {
 public:
  EvaluatorOn(const Exec& exec, ModelStateOn<Exec, T>& state, bool sparse, SequenceModel<Exec, T>& model)
      : exec_(exec), state_(state), sparse_(sparse), model_(model) {
    state_.forget_gradients();  // activations take their memory
  }
  EvaluatorOn(const Exec& exec, ModelStateOn<Exec, T>& state, bool sparse,
              std::unique_ptr<SequenceModel<Exec, T>> own)
      : EvaluatorOn(exec, state, sparse, *own) {
    own_ = std::move(own);
  }

  int sequences() const override { return plans().attention().sequences; }
  data::RankRows rows() const override { return plans().rank_rows(); }

  void evaluate(std::span<const data::Sequence> sequences, std::span<double> losses,
                std::span<std::uint8_t> greedy) override {
    model_.evaluate(exec_, sequences, state_.access(), sparse_, losses, greedy);
  }

 private:
  const SequencePlans& plans() const { return model_.attention.plans(); }

  const Exec& exec_;
  ModelStateOn<Exec, T>& state_;
  bool sparse_;
  SequenceModel<Exec, T>& model_;
  std::unique_ptr<SequenceModel<Exec, T>> own_;
};

template <class Exec, class T>
class LearnerOn final : public Learner {
 public:
  LearnerOn(comm::Communicator& world, comm::Communicator& context, const ResolvedRun& run,
            const SequencePlans& plans, const SequencePlans* validation)
      : world_(world),
        context_(context),
        run_(run),
        kernel_(attention::kernel_for<Exec, T>(step_.model.padded_head_dim(), run.attention.kernel.kernel)),
        backward_(make_backward_memory<Exec, T>(exec_, plans.rows(), step_, validation)),
        trained_(exec_, context, run, step_.activations, plans, backward_),
        state_(make_model_state<Exec, T>(exec_, world, map(), run, backward_)),
        clipper_(run.optimizer.clip_norm) {
    if (validation != nullptr) validation_ = *validation;
    if (step_.sets > 1)
      sequence_losses_ = Owned<Array1<double, Exec>>::uninitialized(
          exec_, MemoryCategory::data, "annulus::training::sequence_losses",
          static_cast<std::size_t>(step_.passes * step_.sequences));
  }

  const model::ParameterMap& map() const override { return trained_.model.parameter_map(); }
  const SequencePlans& plans() const override { return trained_.attention.plans(); }

  std::string description() const override { return device_text<T>(exec_, kernel()); }
  attention::Kernel kernel() const override { return kernel_; }
  std::string warning() const override {
    return attention::slow_kernel_warning<Exec, T>(step_.model.padded_head_dim(),
                                                   run_.attention.kernel.kernel);
  }

  ModelState& state() override { return *state_; }

  std::unique_ptr<Evaluator> evaluator(std::int64_t step) override {
    const bool sparse = is_sparse(step);
    if (!validation_) return std::make_unique<EvaluatorOn<Exec, T>>(exec_, *state_, sparse, trained_);
    return std::make_unique<EvaluatorOn<Exec, T>>(
        exec_, *state_, sparse,
        std::make_unique<SequenceModel<Exec, T>>(exec_, context_, run_, step_.activations.without_backward(),
                                                 *validation_, backward_));
  }

  StepResult update(std::int64_t step, double learning_rate, std::span<const data::Sequence> sequences,
                    bool may_skip, dump::Recorder* recorder,
                    std::vector<prediction::MomentMemory>* memory) override {
    std::optional<RegionTimes> times;
    if (run_.parts_every > 0 && step % run_.parts_every == 0)
      times.emplace(Queue(exec_), static_cast<int>(step_part_names.size()), step_part_of);
    MemoryTrace trace(memory);
    trained_.attention.reset_times();
    state_->reset_times();
    StepResult result;
    // The mean is over all valid targets of all ranks and micro-batches, so it is known before the first
    // gradient.
    for (const auto& sequence : sequences)
      for (const std::int32_t target : sequence.targets) result.targets += target != data::ignored_target;
    result.tokens = world_.size() / context_.size() * std::ssize(sequences) * step_.tokens;
    result.targets = world_.all_reduce_value(result.targets, comm::ReduceOp::sum);
    if (recorder != nullptr) record(*recorder, "parameters/", State::Tensors::master_weights);
    const Sums sums =
        learn(step, sequences, result.targets > 0 ? 1.0f / static_cast<float>(result.targets) : 0.0f, trace,
              recorder, result.audit);
    result.learning_rate = learning_rate;
    result.not_finite = not_finite(step, "loss", std::isfinite(sums.loss));
    share(sums, is_sparse(step), result);
    if (!result.audit.empty()) share_audit(result);
    if (step_.sets > 1) share_set_losses(sequences, result);
    if (recorder != nullptr) recorder->number("loss", result.loss);

    {
      const Region region("annulus::training::reduce_gradients");
      state_->reduce_gradients();
    }
    trace.look("sums of gradients");
    result.not_finite += not_finite_gradient(step, result.skipped());
    optimizer::Clipping clipping{.norm = std::numeric_limits<double>::quiet_NaN()};
    if (!result.skipped()) {
      if (recorder != nullptr) record(*recorder, "gradients/", State::Tensors::gradients);
      clipping = state_->measure(clipper_);
      // Sums of finite numbers may overflow.
      result.not_finite = not_finite(step, "gradient norm", clipping.finite());
    }
    result.gradient_norm = clipping.norm;
    require(!result.skipped() || may_skip, "{}. {}", result.not_finite, not_finite_advice);
    if (!result.skipped()) {
      const Region region("annulus::training::update");
      state_->update(learning_rate, clipping.scale);
    }
    exec_.fence("annulus::training::update: its time is taken");
    trace.look("optimizer");
    if (times) result.part_seconds = times->seconds();
    result.compute = {.seconds = trained_.attention.computing_seconds(), .work = sums.work};
    result.exposed_communication_seconds = result.least_exposed_communication_seconds =
        trained_.attention.exposed_communication_seconds();
    result.exposed_sharding_seconds = state_->exposed_seconds();
    result.planning_seconds = trained_.attention.planning_seconds();
    return result;
  }

 private:
  using State = ModelStateOn<Exec, T>;

  // What this rank's sequences add up to.
  struct Sums {
    double loss = 0;            // nats
    double all_pairs = 0;       // (query, key) of one head that the masks allow, the whole group's
    double dense_pairs = 0;     // those of the layers that select none, all together
    double pairs = 0;           // those of them that are selected, the mean of the layers
    double attended_pairs = 0;  // selected ones of all layers, each time that attention's forward pass ran
    double work = 0;            // ComputeTime::work of this rank; 0 over selected pairs
    std::optional<SequencePlans::Cut> cut;  // of all passes, where there are cuts
    // The whole group's selected pairs:
    sparsity::Balance imbalance;
  };

  // Parameter by parameter.
  void record(dump::Recorder& recorder, const std::string& group, typename State::Tensors which) const {
    state_->for_each_tensor(which, [&](const model::Parameter& p, const float* values) {
      if (p.rows == 1)
        recorder.whole(exec_, group + p.name, Array1<const float, Exec>(values, p.columns));
      else
        recorder.whole(exec_, group + p.name, Array2<const float, Exec>(values, p.rows, p.columns));
    });
  }

  // What this rank reads in a pass, whose sequences are those of its group from the `micro_batch`-th on in
  // this optimizer step.
  void record(dump::Recorder& recorder, const model::TokenRows& rows,
              std::span<const data::Sequence> sequences, std::int64_t micro_batch) const {
    const auto ids = [](std::span<const std::int32_t> of) {
      return Array1<const std::int32_t, HostExec>(of.data(), of.size());
    };
    const int groups = world_.size() / context_.size(), group = world_.rank() / context_.size();
    std::vector<PositionMap> positions;
    for (const data::Sequence& sequence : sequences) positions.push_back(sequence.rows);
    recorder.set_rows({.first = micro_batch * groups + group, .count = step_.sequences, .stride = groups},
                      positions);
    recorder.rows(HostExec(), "tokens", ids(rows.tokens));
    recorder.rows(HostExec(), "targets", ids(rows.targets));
  }

  bool is_sparse(std::int64_t step) const { return trained_.sparse && step > run_.sparse.dense_updates; }

  // Leaves this rank's share of the gradient with the state.
  Sums learn(std::int64_t step, std::span<const data::Sequence> sequences, float grad_scale,
             MemoryTrace& trace, dump::Recorder* recorder, std::vector<sparsity::LayerAudit>& audited) {
    Sums sums;
    const bool sparse = is_sparse(step);
    state_->forget_gradients();
    for (std::int64_t pass = 0; pass < std::ssize(sequences) / step_.sequences; ++pass) {
      const std::int64_t first = pass * step_.sequences;
      const auto at_once =
          sequences.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(step_.sequences));
      const model::TokenRows rows = trained_.rows_of(at_once);
      if (recorder != nullptr) record(*recorder, rows, at_once, first);
      const auto attention = trained_.for_pass(exec_, at_once);
      const auto audit = pass == 0 && is_audited(step) ? make_audit(step) : nullptr;
      trained_.model.train(
          exec_, rows, grad_scale,
          {.attention = attention,
           .parameters = state_->access(),
           .recorder = recorder,
           .sparse = sparse ? &*trained_.sparse : nullptr,
           .audit = audit.get(),
           .behind_call = [&](const model::PassPart& part) { trace.look_behind_call(part); }});
      if (audit) audited = audit->take();
      if (step_.sets > 1)
        trained_.model.sequence_losses(exec_,
                                       Array1<double, Exec>(sequence_losses_.view().data() + first,
                                                            static_cast<std::size_t>(step_.sequences)));
      const SequencePlans& plans = trained_.attention.plans();
      sums.all_pairs += plans.pairs();
      if (const auto cut = plans.cut()) sums.cut = sums.cut ? * sums.cut += *cut : *cut;
      // By the masks of the layers.
      const std::vector<int>& mask_of_layer = plans.attention().mask_of_layer;
      std::vector<model::AttentionCalls> calls_of_masks(plans.attention().masks.size());
      const std::vector<model::AttentionCalls> calls_of_layers = trained_.model.take_attention_calls();
      for (std::size_t layer = 0; layer < calls_of_layers.size(); ++layer) {
        calls_of_masks[static_cast<std::size_t>(mask_of_layer[layer])] += calls_of_layers[layer];
        if (!run_.sparse.layers[layer]) sums.dense_pairs += double(plans.pairs(mask_of_layer[layer]));
      }
      for (int mask = 0; mask < std::ssize(calls_of_masks); ++mask) {
        const model::AttentionCalls& calls = calls_of_masks[static_cast<std::size_t>(mask)];
        const auto layers = double(std::ranges::count(mask_of_layer, mask));
        const auto& [forward, backward, recompute] = trained_.attention.pairs(mask);
        sums.attended_pairs += double(calls.all - calls.sparse) * double(plans.pairs(mask));
        if (!sparse)
          sums.work +=
              2 * (double(calls.all) * forward + double(calls.early) * recompute) + 5 * layers * backward;
        if (calls.early > 0) sums.attended_pairs += double(calls.early) * double(plans.pairs_before(mask));
      }
    }
    sums.pairs = sums.all_pairs;
    if (sparse) add_selected(sums);
    sums.loss = trained_.model.take_loss(exec_).sum;
    return sums;
  }

  // What the layers selected, having made sure that the ranks computed exactly that. The backward pass of a
  // layer runs once, whatever is computed again.
  void add_selected(Sums& sums) {
    const sparsity::SelectedPairs pairs = trained_.sparse_attention->check_pairs(exec_);
    sums.imbalance = pairs.forward.imbalance;
    const double heads = step_.model.heads, layers = step_.model.layers;
    sums.pairs = (sums.dense_pairs + double(pairs.backward.selected) / heads) / layers;
    sums.attended_pairs += double(pairs.forward.selected) / heads;
  }

  bool is_audited(std::int64_t step) const {
    const std::int64_t every = run_.audit.every;
    return every > 0 && step % every == 0;
  }

  // Of the first sequence of the pass.
  std::unique_ptr<sparsity::AttentionAudit<Exec, T>> make_audit(std::int64_t step) const {
    using Audit = sparsity::AttentionAudit<Exec, T>;
    const SequencePlans& plans = trained_.attention.plans();
    typename Audit::Sequence sequence{.layout = plans.problem().layout,
                                      .rows = plans.rows(),
                                      .masks = {},
                                      .mask_of_layer = plans.attention().mask_of_layer};
    for (int mask = 0; mask < std::ssize(plans.attention().masks); ++mask)
      sequence.masks.push_back(plans.masks(mask).front());
    const typename Audit::Options options{.queries = run_.audit.queries, .number = step};
    return std::make_unique<Audit>(exec_, context_, std::move(sequence), options);
  }

  // Adds up what the groups have found.
  void share_audit(StepResult& result) const {
    const bool first = context_.rank() == 0;  // of its group, whose ranks have the same
    std::vector<double> sums;
    const auto visit = [&](const auto& use) {
      for (sparsity::LayerAudit& layer : result.audit) {
        for (sparsity::HeadAudit& head : layer.heads) head.visit(use);
        std::ranges::for_each(layer.weights, use);
        std::ranges::for_each(layer.gradients, use);
      }
    };
    visit([&](double& sum) { sums.push_back(first ? sum : 0); });
    world_.all_reduce(HostExec(), sums.data(), sums.size(), DType::f64, comm::ReduceOp::sum);
    auto next = sums.begin();
    visit([&](double& sum) { sum = *next++; });
    const int groups = world_.size() / context_.size();
    for (sparsity::LayerAudit& layer : result.audit)
      for (sparsity::HeadAudit& head : layer.heads) head.density /= groups;
  }

  // Loss and operations of the whole optimizer step, and the means of the ranks.
  void share(const Sums& mine, bool sparse, StepResult& result) const {
    const double ranks = world_.size();
    // The fingerprints of the groups, added up in halves, which doubles hold exactly.
    const std::uint64_t cut = mine.cut && context_.rank() == 0 ? mine.cut->fingerprint : 0;
    std::array<double, 9> sums{mine.loss,
                               mine.pairs / context_.size(),
                               mine.attended_pairs / context_.size(),
                               mine.all_pairs / context_.size(),
                               trained_.attention.computation_ratio(),
                               mine.imbalance.workers,
                               mine.imbalance.steps,
                               static_cast<double>(cut >> 32),
                               static_cast<double>(cut & 0xffffffff)};
    world_.all_reduce(HostExec(), sums.data(), sums.size(), DType::f64, comm::ReduceOp::sum);
    result.attention_computation_ratio = sums[4] / ranks;
    if (sparse) result.attention_imbalance = {sums[5] / ranks, sums[6] / ranks};
    if (mine.cut)
      result.cut =
          shared_cut(*mine.cut, mine.all_pairs, sums[3],
                     (static_cast<std::uint64_t>(sums[7]) << 32) ^ static_cast<std::uint64_t>(sums[8]));
    result.loss = sums[0] / std::max<double>(1.0, double(result.targets));
    result.flops =
        model::attention_flops(step_.model, sums[1]) + model::dense_flops(step_.model, result.tokens);
    result.attention_density = sums[3] > 0 ? sums[1] / sums[3] : 1.0;
    result.forward_attention = sums[1] > 0 ? sums[2] / (sums[1] * step_.model.layers) : 0.0;
  }

  // What the sequences of each set add up to, on all ranks.
  void share_set_losses(std::span<const data::Sequence> sequences, StepResult& result) const {
    std::vector<double> losses(sequences.size(), 0.0), sums(2 * static_cast<std::size_t>(step_.sets), 0.0);
    if (trained_.attention.plans().rows().count > 0)
      Kokkos::deep_copy(Kokkos::View<double*, Kokkos::HostSpace>(losses.data(), losses.size()),
                        *sequence_losses_);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::size_t set = sequences[i].set;
      sums[2 * set] += losses[i];
      for (const std::int32_t target : sequences[i].targets)
        if (target != data::ignored_target) ++sums[2 * set + 1];
    }
    world_.all_reduce(HostExec(), sums.data(), sums.size(), DType::f64, comm::ReduceOp::sum);
    for (std::size_t i = 0; i < sums.size(); i += 2)
      result.set_losses.push_back({sums[i], static_cast<std::int64_t>(sums[i + 1])});
  }

  // This rank's, with the fingerprint of all groups; `pairs` are its group's, `all_pairs` those of all
  // groups.
  StepResult::Cut shared_cut(const SequencePlans::Cut& mine, double pairs, double all_pairs,
                             std::uint64_t fingerprint) const {
    const double groups = double(world_.size()) / context_.size();
    return {.imbalance = mine.mean_pairs > 0 ? mine.most_pairs / mine.mean_pairs : 1,
            .group_imbalance = all_pairs > 0 ? pairs * groups / all_pairs : 1,
            .seconds_ahead = mine.seconds_ahead,
            .fingerprint = fingerprint};
  }

  static constexpr const char* not_finite_advice =
      "The parameters were not changed and the checkpoints are as they were: branch off an earlier one with "
      "a lower train.lr, a longer train.warmup_steps or a smaller train.clip_norm (--resume FILE --set "
      "run.folder=NEW), look at the data of this step, or let the run skip "
      "so many such steps in a row with train.skip_non_finite";

  // Says that a rank saw a number that is not finite, the same text on all ranks; empty where none did.
  std::string not_finite(std::int64_t step, const char* what, bool finite) const {
    const std::int32_t first =
        world_.all_reduce_value<std::int32_t>(finite ? world_.size() : world_.rank(), comm::ReduceOp::min);
    if (first == world_.size()) return {};
    return fmt::format("the {} of optimizer step {} is not finite; rank {} is the lowest that saw it", what,
                       step, first);
  }

  // Names a gradient that is not finite, the same text on all ranks; empty where none is. What is not finite
  // spreads over the ranks of a group with the gradients of keys and values, so the rank that met it first is
  // the one to name.
  std::string not_finite_gradient(std::int64_t step, bool after_loss) const {
    const std::int64_t mine = state_->non_finite();
    std::vector<std::int64_t> all(static_cast<std::size_t>(world_.size()));
    world_.all_gather(Queue(HostExec()), &mine, all.data(), sizeof mine);
    const auto first = std::ranges::max_element(all);
    if (*first < 0) return {};
    const std::string& tensor = map().at(*first).name;
    if (after_loss)
      return fmt::format(", and the gradient of {} on rank {} the first that is not, too", tensor,
                         first - all.begin());
    return fmt::format(
        "the gradient of {} of optimizer step {} is not finite; rank {} was the first to meet it", tensor,
        step, first - all.begin());
  }

  const OwnInstance<Exec> instance_;  // a stream for each rank: ranks of a test are threads of one process
  const Exec& exec_ = *instance_;
  comm::Communicator &world_, &context_;
  const ResolvedRun run_;
  const prediction::Setting& step_ = run_.step;
  const attention::Kernel kernel_;
  std::shared_ptr<model::BackwardMemory<Exec>> backward_;  // of models and state_
  SequenceModel<Exec, T> trained_;
  std::optional<SequencePlans> validation_;  // where it has plans of its own
  std::unique_ptr<State> state_;
  Owned<Array1<double, Exec>> sequence_losses_;  // (sequences of a step), where sets are told apart
  optimizer::GradientClipper<Exec> clipper_;
};

template <class Exec, class T>
std::unique_ptr<Learner> make_learner_on(comm::Communicator& world, comm::Communicator& context,
                                         const ResolvedRun& run, const SequencePlans& plans,
                                         const SequencePlans* validation) {
  return std::make_unique<LearnerOn<Exec, T>>(world, context, run, plans, validation);
}

}  // namespace annulus::training
