#include "eval/evaluation/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/queue.hpp>
#include <annulus/training/run/trainer.hpp>

#include "attention/comm/watchdog.hpp"
#include "base/kokkos/execution/own_instance.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "training/io/progress_line.hpp"
#include "training/run/config/agreement.hpp"
#include "training/run/passes/device_text.hpp"
#include "training/run/passes/sequence_model.hpp"
#include "training/run/together.hpp"

namespace annulus::eval {

namespace {

template <class Exec, class T>
class EvaluationWeightsOn final : public EvaluationWeights {
 public:
  explicit EvaluationWeightsOn(const model::Config& shape)
      : map_(shape),
        elements_(Owned<Array1<T, Exec>>::uninitialized(exec_, MemoryCategory::parameters,
                                                        "annulus::eval::weights", map_.size())) {}

  const Array1<T, Exec>& elements() const { return *elements_; }

  /// Reads the weights from `source`, or draws them. `shows`: this rank says how far it has come.
  void read(const training::WeightSource* source, std::uint64_t seed, bool shows) {
    const std::int64_t size = map_.size(), element = sizeof(float);
    std::optional<io::ProgressLine> line;
    if (shows) line.emplace("loading the weights", size * element);
    std::vector<T> rounded;
    const auto put = [&](std::int64_t at, std::span<const float> values) {
      rounded.resize(values.size());
      std::ranges::transform(values, rounded.begin(), [](float value) { return T(value); });
      queue_.copy_from_host(elements().data() + at, rounded.data(), rounded.size() * sizeof(T));
      queue_.fence("annulus::eval: the weights on the host are overwritten");
      if (line) line->show((at + std::ssize(values)) * element);
    };
    source != nullptr ? source->read(0, size, put) : draw(seed, put);
  }

 private:
  void draw(std::uint64_t seed, const training::WeightSource::Use& put) const {
    constexpr std::int64_t at_a_time = std::int64_t{1} << 22;
    std::vector<float> values;
    for (std::int64_t first = 0; first < map_.size(); first += at_a_time) {
      const std::int64_t count = std::min(at_a_time, map_.size() - first);
      const auto drawn = Owned<Array1<float, Exec>>::uninitialized(exec_, MemoryCategory::workspace,
                                                                   "annulus::eval::drawn", count);
      model::initialize_range(exec_, map_, seed, first, *drawn);
      values.resize(static_cast<std::size_t>(count));
      queue_.copy_to_host(values.data(), (*drawn).data(), values.size() * sizeof(float));
      queue_.fence("annulus::eval: the host reads what was drawn");
      put(first, values);
    }
  }

  const OwnInstance<Exec> instance_;
  const Exec& exec_ = *instance_;
  const Queue queue_{exec_};
  model::ParameterMap map_;
  Owned<Array1<T, Exec>> elements_;  // (parameters)
};

template <class Exec, class T>
class EvaluationModelOn final : public EvaluationModel {
 public:
  EvaluationModelOn(comm::Communicator& context, const training::ResolvedRun& run,
                    const training::SequencePlans& plans,
                    std::shared_ptr<const EvaluationWeightsOn<Exec, T>> weights)
      : context_(context),
        kernel_(
            attention::kernel_for<Exec, T>(run.step.model.padded_head_dim(), run.attention.kernel.kernel)),
        weights_(std::move(weights)),
        model_(exec_, context, run, run.step.activations.without_backward(), plans, nullptr),
        access_(map(), weights_->elements()) {}

  std::string device() const override { return training::device_text<T>(exec_, kernel_); }
  const training::SequencePlans& plans() const override { return model_.attention.plans(); }
  std::int64_t parameters() const override { return map().size(); }
  int sequences() const override { return plans().attention().sequences; }
  data::RankRows rows() const override { return plans().rank_rows(); }

  void evaluate(std::span<const data::Sequence> sequences, std::span<double> losses,
                std::span<std::uint8_t> greedy) override {
    model_.evaluate(exec_, sequences, access_, model_.sparse.has_value(), losses, greedy);
  }

  int logits(std::span<const std::int32_t> prefix, std::span<float> logits) override {
    const std::int64_t tokens = plans().problem().mask.tokens();
    require(!prefix.empty() && std::ssize(prefix) <= tokens,
            "a prefix has 1 to {} tokens here, this one has {}", tokens, prefix.size());
    require(sequences() == 1,
            "the next token of one sequence is asked for, but a pass takes {}: "
            "leave out train.sequences_per_pass",
            sequences());
    // What stands behind the prefix changes nothing: no token sees a later one.
    const data::Sequence sequence = rows().read([&](const PositionMap& of_rank) {
      data::Sequence made;
      made.rows = of_rank;
      for (std::int64_t row = 0; row < of_rank.count; ++row) {
        const auto position = static_cast<std::size_t>(of_rank(row));
        made.tokens.push_back(position < prefix.size() ? prefix[position] : 0);
      }
      made.targets.assign(made.tokens.size(), data::ignored_target);
      made.document_starts = {0};
      return made;
    });
    const PositionMap& held = sequence.rows;
    const std::span all(&sequence, 1);
    const typename model::Model<Exec, T>::Pass pass{.attention = model_.for_pass(exec_, all),
                                                    .parameters = access_,
                                                    .sparse = model_.sparse ? &*model_.sparse : nullptr};
    const std::int64_t last = std::ssize(prefix) - 1, row = held.rows_below(last);
    if (held.empty())  // what it has to do for others
      model_.model.evaluate(exec_, model_.rows_of(all), pass, {});
    else
      model_.model.logits(exec_, model_.rows_of(all), pass, std::min(row, held.count - 1), logits);
    if (model_.sparse) model_.sparse_attention->check_pairs(exec_);
    return owner_of(last);
  }

 private:
  const model::ParameterMap& map() const { return model_.model.parameter_map(); }

  int owner_of(std::int64_t position) const {
    for (int rank = 0; rank < context_.size(); ++rank) {
      const PositionMap rows = plans().problem().shard(rank);
      if (rows.rows_below(position) < rows.rows_below(position + 1)) return rank;
    }
    fail("position {} of a sequence lies on no rank", position);
  }

  const OwnInstance<Exec> instance_;
  const Exec& exec_ = *instance_;
  comm::Communicator& context_;
  const attention::Kernel kernel_;
  std::shared_ptr<const EvaluationWeightsOn<Exec, T>> weights_;
  training::SequenceModel<Exec, T> model_;
  model::WholeWeights<Exec, T> access_;
};

template <class Exec, class T>
struct On {};

/// Calls make(On<Exec, T>()) for where and in which type a configuration computes.
template <class Make>
auto dispatch(const training::Config& config, const Make& make) {
  const bool on_gpu = training::computes_on_gpu(config),
             half = parse_dtype(config.train.dtype, "train.dtype") == DType::bf16;
  if (on_gpu) return half ? make(On<DeviceExec, bfloat16>()) : make(On<DeviceExec, float>());
  return half ? make(On<HostExec, bfloat16>()) : make(On<HostExec, float>());
}

}  // namespace

std::string EvaluationModel::description() const {
  return fmt::format("{}, schedule {}, layout {}", device(), plans().attention().schedule,
                     plans().problem().layout.to_string());
}

std::shared_ptr<const EvaluationWeights> load_weights(comm::Communicator& world,
                                                      const training::Config& config,
                                                      const training::WeightSource* source) {
  const comm::Watchdog::ActivityScope activity(
      world.watchdog(), "the start, for which every rank reads the weights", config.file_stall_timeout());
  if (source != nullptr) {
    comm::Facts facts;
    training::together(world, [&] {
      facts.add("the weights", fmt::format("{:016x}", source->fingerprint()),
                "give every rank the same weights");
    });
    comm::require_agreement(world, facts);
  }
  return dispatch(config, [&]<class Exec, class T>(On<Exec, T>) -> std::shared_ptr<const EvaluationWeights> {
    const auto weights = std::make_shared<EvaluationWeightsOn<Exec, T>>(config.model);
    training::together(world, [&] {
      weights->read(source, static_cast<std::uint64_t>(config.run.seed), world.rank() == 0);
    });
    return weights;
  });
}

std::unique_ptr<EvaluationModel> make_evaluation_model(comm::Communicator& world, comm::Communicator& context,
                                                       const training::Config& config,
                                                       std::shared_ptr<const EvaluationWeights> weights,
                                                       std::vector<std::int64_t> documents) {
  training::AttentionInputs inputs = training::agree_on_inputs(world, config);
  inputs.documents = std::move(documents);
  const training::ResolvedRun run =
      training::resolve(config, world.topology(), training::computes_on_gpu(config));
  const training::SequencePlans plans(context.rank(),
                                      training::resolve_attention(config, context.topology(), inputs),
                                      training::SequencePlans::Passes::forward);
  return dispatch(config, [&]<class Exec, class T>(On<Exec, T>) -> std::unique_ptr<EvaluationModel> {
    auto mine = std::dynamic_pointer_cast<const EvaluationWeightsOn<Exec, T>>(std::move(weights));
    require(mine != nullptr, "the weights were loaded for another device or type than {}",
            config.train.dtype);
    return std::make_unique<EvaluationModelOn<Exec, T>>(context, run, plans, std::move(mine));
  });
}

}  // namespace annulus::eval
