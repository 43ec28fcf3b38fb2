#include "eval/evaluation_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/queue.hpp>
#include <annulus/training/run/device.hpp>

#include "attention/comm/watchdog.hpp"
#include "base/kokkos/execution/own_instance.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "training/io/progress_line.hpp"
#include "training/run/config/agreement.hpp"
#include "training/run/passes/sequence_model.hpp"
#include "training/run/together.hpp"

namespace annulus::eval {

namespace {

// Where the weights come from, if from no file.
struct WeightsOf {
  const training::WeightSource* source;
  std::uint64_t seed;
  bool shows;  // this rank says how far it has come
};

template <class Exec, class T>
class EvaluationModelOn final : public EvaluationModel {
 public:
  EvaluationModelOn(comm::Communicator& context, const training::ResolvedRun& run,
                    const training::SequencePlans& plans)
      : context_(context),
        kernel_(attention::kernel_for<Exec, T>(run.step.model.head_dim, run.attention.kernel.kernel)),
        model_(exec_, context, run, run.step.activations.without_backward(), plans, nullptr),
        weights_(Owned<Array1<T, Exec>>::uninitialized(exec_, MemoryCategory::parameters,
                                                       "annulus::eval::weights", map().size())),
        access_(map(), *weights_) {}

  void read(const WeightsOf& weights) {
    const std::int64_t size = map().size(), element = sizeof(float);
    std::optional<io::ProgressLine> line;
    if (weights.shows) line.emplace("loading the weights", size * element);
    std::vector<T> rounded;
    const auto put = [&](std::int64_t at, std::span<const float> values) {
      rounded.resize(values.size());
      std::ranges::transform(values, rounded.begin(), [](float value) { return T(value); });
      queue_.copy_from_host((*weights_).data() + at, rounded.data(), rounded.size() * sizeof(T));
      queue_.fence("annulus::eval: the weights on the host are overwritten");
      if (line) line->show((at + std::ssize(values)) * element);
    };
    weights.source != nullptr ? weights.source->read(0, size, put) : draw(weights.seed, put);
  }

  std::string description() const override {
    return fmt::format("{} in {}, attention kernel {}, schedule {}, layout {}", Exec::name(),
                       name_of(dtype_of<T>), name_of(kernel_), plans().attention().schedule,
                       plans().problem().layout.to_string());
  }
  const training::SequencePlans& plans() const override { return model_.attention.plans(); }
  std::int64_t parameters() const override { return map().size(); }
  int sequences() const override { return plans().attention().sequences; }
  PositionMap rows() const override { return plans().rows(); }

  void evaluate(std::span<const data::Sequence> sequences, std::span<double> losses,
                std::span<std::uint8_t> greedy) override {
    model_.evaluate(exec_, sequences, access_, model_.sparse.has_value(), losses, greedy);
  }

  int logits(std::span<const std::int32_t> prefix, std::span<float> logits) override {
    const std::int64_t tokens = plans().problem().mask.tokens();
    require(!prefix.empty() && std::ssize(prefix) <= tokens,
            "a prefix has 1 to {} tokens here, this one has {}", tokens, prefix.size());
    require(sequences() == 1,
            "the next token of one sequence is asked for, but a pass takes {}: leave out "
            "train.sequences_per_pass",
            sequences());
    const PositionMap rows = this->rows();
    // What stands behind the prefix changes nothing: no token sees a later one.
    data::Sequence sequence;
    for (std::int64_t row = 0; row < rows.count; ++row)
      sequence.tokens.push_back(rows(row) < std::ssize(prefix) ? prefix[static_cast<std::size_t>(rows(row))]
                                                               : 0);
    sequence.targets.assign(sequence.tokens.size(), data::ignored_target);
    sequence.document_starts = {0};
    const std::span all(&sequence, 1);
    auto& attention = model_.attention.for_pass(exec_, all);
    const typename model::Model<Exec, T>::Pass pass{
        .attention = attention, .parameters = access_, .sparse = model_.sparse ? &*model_.sparse : nullptr};
    const std::int64_t last = std::ssize(prefix) - 1, row = rows.rows_below(last);
    if (rows.empty())  // what it has to do for others
      model_.model.evaluate(exec_, model_.rows_of(all), pass, {});
    else
      model_.model.logits(exec_, model_.rows_of(all), pass, std::min(row, rows.count - 1), logits);
    if (model_.sparse) model_.sparse_attention->check_pairs(exec_);
    return owner_of(last);
  }

 private:
  using Put = std::function<void(std::int64_t at, std::span<const float> values)>;

  const model::ParameterMap& map() const { return model_.model.parameter_map(); }

  void draw(std::uint64_t seed, const Put& put) const {
    constexpr std::int64_t at_a_time = std::int64_t{1} << 22;
    std::vector<float> values;
    for (std::int64_t first = 0; first < map().size(); first += at_a_time) {
      const std::int64_t count = std::min(at_a_time, map().size() - first);
      const auto drawn = Owned<Array1<float, Exec>>::uninitialized(exec_, MemoryCategory::workspace,
                                                                   "annulus::eval::drawn", count);
      model::initialize_range(exec_, map(), seed, first, *drawn);
      values.resize(static_cast<std::size_t>(count));
      queue_.copy_to_host(values.data(), (*drawn).data(), values.size() * sizeof(float));
      queue_.fence("annulus::eval: the host reads what was drawn");
      put(first, values);
    }
  }

  int owner_of(std::int64_t position) const {
    for (int rank = 0; rank < context_.size(); ++rank) {
      const PositionMap rows = plans().problem().shard(rank);
      if (rows.rows_below(position) < rows.rows_below(position + 1)) return rank;
    }
    fail("position {} of a sequence lies on no rank", position);
  }

  const OwnInstance<Exec> instance_;
  const Exec& exec_ = *instance_;
  const Queue queue_{exec_};
  comm::Communicator& context_;
  const attention::Kernel kernel_;
  training::SequenceModel<Exec, T> model_;
  Owned<Array1<T, Exec>> weights_;  // (parameters)
  model::WholeWeights<Exec, T> access_;
};

template <class Exec, class T>
std::unique_ptr<EvaluationModel> make_in(comm::Communicator& world, comm::Communicator& context,
                                         const training::ResolvedRun& run,
                                         const training::SequencePlans& plans, const WeightsOf& weights) {
  auto model = std::make_unique<EvaluationModelOn<Exec, T>>(context, run, plans);
  training::together(world, [&] { model->read(weights); });
  return model;
}

template <class Exec, class... Arguments>
std::unique_ptr<EvaluationModel> make_on(DType type, Arguments&&... arguments) {
  return type == DType::bf16 ? make_in<Exec, bfloat16>(arguments...) : make_in<Exec, float>(arguments...);
}

}  // namespace

std::unique_ptr<EvaluationModel> make_evaluation_model(comm::Communicator& world, comm::Communicator& context,
                                                       const training::Config& config,
                                                       const training::WeightSource* weights,
                                                       std::vector<std::int64_t> documents) {
  const comm::Watchdog::ActivityScope activity(
      world.watchdog(), "the start, for which every rank reads the weights", config.file_stall_timeout());
  training::AttentionInputs inputs = training::agree_on_inputs(world, config);
  inputs.documents = std::move(documents);
  const bool on_gpu = training::computes_on_gpu(config);
  const training::ResolvedRun run = training::resolve(config, world.topology(), on_gpu);
  const training::SequencePlans plans(context.rank(),
                                      training::resolve_attention(config, context.topology(), inputs));
  if (weights != nullptr) {
    comm::Facts facts;
    training::together(world, [&] {
      facts.add("the weights", fmt::format("{:016x}", weights->fingerprint()),
                "give every rank the same weights");
    });
    comm::require_agreement(world, facts);
  }
  const WeightsOf of{weights, static_cast<std::uint64_t>(config.run.seed), world.rank() == 0};
  return on_gpu ? make_on<DeviceExec>(run.step.type, world, context, run, plans, of)
                : make_on<HostExec>(run.step.type, world, context, run, plans, of);
}

}  // namespace annulus::eval
