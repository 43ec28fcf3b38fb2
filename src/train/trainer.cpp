#include <annulus/train/trainer.hpp>

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <numeric>

#include <annulus/base/error.hpp>
#include <annulus/core/region.hpp>
#include <annulus/data/loader.hpp>
#include <annulus/model/llama.hpp>
#include <annulus/optim/adamw.hpp>
#include <annulus/optim/clip.hpp>
#include <annulus/simulate/choose.hpp>
#include <annulus/train/checkpoint.hpp>
#include <annulus/train/stop_signal.hpp>

#include "train/groups.hpp"
#include "train/report.hpp"
#include "train/run_folder.hpp"
#include "train/sequence_attention.hpp"

namespace annulus::train {

namespace {

using Exec = HostExec;

std::shared_ptr<const data::TokenDataset> open_data(const Config& config) {
  require(!config.data.shards.empty(),
          "data.shards is empty: name token shards or a folder of them (annulus-tokens pack makes them)");
  const std::vector<std::filesystem::path> paths(config.data.shards.begin(), config.data.shards.end());
  return std::make_shared<const data::TokenDataset>(paths, config.data.sequence_length);
}

// The configuration with what the data decides filled in.
Config complete(Config config, const data::TokenDataset& dataset) {
  if (config.model.vocabulary == 0) config.model.vocabulary = dataset.vocabulary();
  require(config.model.vocabulary >= dataset.vocabulary(),
          "model.vocabulary = {} is smaller than the vocabulary of the data ({}): set it to {} or to 0, "
          "which takes the data's",
          config.model.vocabulary, dataset.vocabulary(), dataset.vocabulary());
  return config;
}

std::vector<optim::ParameterRange> decay_ranges(const model::ParameterMap& map) {
  std::vector<optim::ParameterRange> ranges;
  for (const model::Parameter& p : map.all()) ranges.push_back({p.offset, p.offset + p.size(), p.decay});
  return ranges;
}

double mean(const std::deque<double>& values) {
  return values.empty() ? 0.0 : std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

// Losses that the summary is told: means over so many updates at either end.
constexpr std::size_t averaged_updates = 10;

class Run {
 public:
  Run(const Exec& exec, comm::Communicator& world, Config config, const ResumePolicy& resume)
      : exec_(exec),
        world_(world),
        dataset_(open_data(config)),
        config_(complete(std::move(config), *dataset_)),
        groups_(Groups::make(world, config_.parallel.context)),
        attention_(exec, *groups_.context, config_),
        llama_(exec, config_.model, attention_.rows()),
        map_(llama_.parameter_map()),
        parameters_(Owned<Array1<float, Exec>>::uninitialized(exec, MemoryCategory::parameters,
                                                              "annulus::train::parameters", map_.size())),
        gradients_(Owned<Array1<float, Exec>>::uninitialized(exec, MemoryCategory::gradients,
                                                             "annulus::train::gradients", map_.size())),
        optimizer_(exec, config_.adamw(), map_.size(), decay_ranges(map_)),
        clipper_(config_.train.clip_norm),
        schedule_(config_.learning_rate()) {
    if (world.rank() == 0) folder_.emplace(config_, resume);
    start();
  }

  Outcome run() {
    announce();
    Outcome outcome;
    outcome.first_step = progress_.step;
    outcome.schedule = attention_.schedule();
    outcome.layout = attention_.layout().to_string();
    std::deque<double> first_losses, last_losses;
    std::string last_checkpoint = resumed_ && folder_ ? folder_->resume_from()->string() : std::string();
    while (progress_.step < config_.train.steps && outcome.stop_signal == 0) {
      const StepResult result = step();
      if (first_losses.size() < averaged_updates) first_losses.push_back(result.loss);
      last_losses.push_back(result.loss);
      if (last_losses.size() > averaged_updates) last_losses.pop_front();
      if (progress_.step > outcome.first_step + 1)
        outcome.seconds += result.seconds;  // the first one warms up
      report(result, outcome);
      outcome.stop_signal = result.stop_signal;
      outcome.memory = result.memory;
      outcome.resident_bytes = result.resident;
      const bool due = config_.checkpoint.every > 0 && progress_.step % config_.checkpoint.every == 0;
      if (due || outcome.stop_signal != 0 || progress_.step >= config_.train.steps) {
        outcome.last_save_failed = !save();
        if (outcome.last_save_failed)
          ++outcome.failed_saves;
        else
          last_checkpoint = checkpoint_of(progress_.step);
      }
    }
    outcome.last_step = progress_.step;
    outcome.first_loss = mean(first_losses);
    outcome.last_loss = mean(last_losses);
    const auto timed = outcome.last_step - outcome.first_step - 1;
    if (timed > 0 && outcome.seconds > 0)
      outcome.tokens_per_second = double(timed) * double(tokens_per_step()) / outcome.seconds;
    outcome.last_checkpoint = last_checkpoint;
    if (world_.rank() == 0) conclude(outcome);
    return outcome;
  }

 private:
  void conclude(const Outcome& outcome) const {
    if (outcome.last_step == outcome.first_step)
      spdlog::info("nothing was left to do: {} updates are made, train.steps = {} asks for no more",
                   outcome.last_step, config_.train.steps);
    else if (outcome.last_save_failed)
      spdlog::error(
          "the state after step {} could not be saved (see above); the last good checkpoint is {}: make room "
          "and run the same command again",
          outcome.last_step, outcome.last_checkpoint.empty() ? "none" : outcome.last_checkpoint);
    else if (outcome.stop_signal != 0)
      spdlog::info("stopped by {} after step {}: the same command goes on from there",
                   signal_name(outcome.stop_signal), outcome.last_step);
  }

  // Empty on ranks other than 0.
  std::string checkpoint_of(std::int64_t step) const {
    return folder_ ? folder_->checkpoints().file_of(step).string() : std::string();
  }

  std::int64_t update_sequences() const { return groups_.data_groups * config_.train.micro_batches; }
  std::int64_t tokens_per_step() const { return update_sequences() * config_.data.sequence_length; }

  // Initial parameters, or those of the checkpoint, on every rank; then the loader where it is to go on.
  void start() {
    const Region region("annulus::train::start");
    const comm::Watch::Doing doing(world_.watch(), "the start of the run, for which rank 0 reads files",
                                   config_.file_stall_limit());
    const bool resume = world_.all_reduce_value<std::int32_t>(folder_ && folder_->resume_from() ? 1 : 0,
                                                              comm::ReduceOp::max) != 0;
    if (resume) {
      if (folder_) progress_ = load_checkpoint(*folder_->resume_from(), map_, buffers());
      broadcast_state();
      require(progress_.data_fingerprint == dataset_->fingerprint(),
              "data.shards hold other tokens than those the checkpoint was trained on: give the same shards, "
              "or start anew in another "
              "run.folder");
      require_same_update();
      optimizer_.set_steps(progress_.step);
      resumed_ = true;
    } else {
      model::initialize(exec_, map_, static_cast<std::uint64_t>(config_.run.seed), *parameters_);
    }
    progress_.data_fingerprint = dataset_->fingerprint();
    progress_.update_sequences = update_sequences();
    progress_.config = config_.to_toml();
    data::LoaderOptions options;
    options.rows = attention_.rows();
    options.groups = groups_.data_groups;
    options.group = groups_.data_group;
    options.seed = static_cast<std::uint64_t>(config_.data.seed);
    options.shuffle = config_.data.shuffle;
    options.start = progress_.stream;
    loader_.emplace(dataset_, options);
    // What the loader may have read ahead and what a step holds, an id and a target a row.
    data_charge_ = annulus::detail::MemoryCharge(
        MemoryCategory::data, (options.prefetch + config_.train.micro_batches) * options.rows.count *
                                  static_cast<std::int64_t>(2 * sizeof(std::int32_t)));
    if (folder_) folder_->start_metrics(progress_.step);
  }

  // The same updates can be shared out among other numbers of ranks, but they must stay the same.
  void require_same_update() const {
    require(
        progress_.update_sequences == update_sequences(),
        "an update of the checkpoint's run reads {} sequences, one of this run {} ({} data-parallel groups "
        "of train.micro_batches = {}): start another number of ranks, or change train.micro_batches or "
        "parallel.context",
        progress_.update_sequences, update_sequences(), groups_.data_groups, config_.train.micro_batches);
  }

  void broadcast_state() {
    std::int64_t numbers[] = {progress_.step, progress_.stream.epoch, progress_.stream.index,
                              progress_.data_fingerprint, progress_.update_sequences};
    world_.broadcast(exec_, numbers, sizeof numbers, 0);
    progress_.step = numbers[0];
    progress_.stream = {numbers[1], numbers[2]};
    progress_.data_fingerprint = static_cast<std::uint32_t>(numbers[3]);
    progress_.update_sequences = numbers[4];
    world_.broadcast(exec_, *parameters_, 0);
    world_.broadcast(exec_, optimizer_.first_moment(), 0);
    world_.broadcast(exec_, optimizer_.second_moment(), 0);
  }

  Buffers buffers() const { return {*parameters_, optimizer_.first_moment(), optimizer_.second_moment()}; }

  StepResult step() {
    const Region region("annulus::train::step");
    const Kokkos::Timer timer;
    attention_.attention().reset_times();
    const std::int64_t step = progress_.step + 1;
    const comm::Watch::Doing doing(world_.watch(), fmt::format("update {}", step));

    std::vector<data::Sequence> sequences;
    StepResult result;
    {
      const Region data_region("annulus::train::data");
      for (std::int64_t i = 0; i < config_.train.micro_batches; ++i) sequences.push_back(loader_->next());
      for (const auto& sequence : sequences)
        for (const std::int32_t target : sequence.targets) result.targets += target != data::ignored_target;
    }
    // The mean is over all valid targets of all ranks and micro-batches, so it is known before the first
    // gradient.
    result.targets = world_.all_reduce_value(result.targets, comm::ReduceOp::sum);
    const float grad_scale = result.targets > 0 ? 1.0f / static_cast<float>(result.targets) : 0.0f;

    Kokkos::deep_copy(exec_, *gradients_, 0.0f);
    double loss_sum = 0;
    for (const auto& sequence : sequences) {
      auto& attention = attention_.for_sequence(exec_, sequence.document_starts);
      loss_sum += llama_
                      .train(exec_, sequence.tokens, sequence.targets, attention, *parameters_, grad_scale,
                             *gradients_)
                      .sum;
    }
    require_finite(step, "loss", std::isfinite(loss_sum));
    result.loss = world_.all_reduce_value(loss_sum, comm::ReduceOp::sum) /
                  std::max<double>(1.0, double(result.targets));
    // The sum over all ranks hides whose gradient went wrong first, so each rank looks at its own.
    require_finite(step, "gradient norm", clipper_.measure(exec_, *gradients_).finite());
    {
      const Region reduce_region("annulus::train::reduce_gradients");
      world_.all_reduce(exec_, *gradients_);
    }
    const optim::Clipping clipping = clipper_.measure(exec_, *gradients_);
    require_finite(step, "gradient norm", clipping.finite());
    result.gradient_norm = clipping.norm;
    result.learning_rate = schedule_.at(progress_.step);
    {
      const Region update_region("annulus::train::update");
      optimizer_.step(exec_, *parameters_, *gradients_, result.learning_rate, clipping.scale);
    }
    exec_.fence("annulus::train::step: its time is taken");
    progress_.step = step;
    progress_.stream = loader_->state();
    result.tokens = tokens_per_step();
    result.seconds = timer.seconds();
    result.waiting_seconds = attention_.attention().times().waiting;
    result.planning_seconds = attention_.take_planning_seconds();
    result.memory = memory_use();
    result.resident = peak_resident_bytes();
    result.stop_signal = stop_.received();
    take_maxima(world_, result);
    return result;
  }

  // Ends the run on all ranks when any of them saw a number that is not finite.
  void require_finite(std::int64_t step, const char* what, bool finite) {
    const std::int32_t first =
        world_.all_reduce_value<std::int32_t>(finite ? world_.size() : world_.rank(), comm::ReduceOp::min);
    if (first == world_.size()) return;
    fail(
        "the {} of step {} is not finite; rank {} is the lowest that saw it. No update was made and the "
        "checkpoints are as they were: branch off an earlier one with a lower train.lr, a longer "
        "train.warmup_steps or a smaller train.clip_norm (--resume FILE --set run.folder=NEW), and look at "
        "the "
        "data of this step",
        what, step, first);
  }

  void report(const StepResult& result, const Outcome& outcome) {
    if (!folder_) return;
    folder_->write_metrics(
        metrics_record(result, progress_.step, progress_.step * result.tokens, progress_.stream.epoch));
    if (progress_.step % config_.train.log_every != 0 && progress_.step != outcome.first_step + 1 &&
        progress_.step != config_.train.steps)
      return;
    const auto timed = progress_.step - outcome.first_step - 1;
    spdlog::info("{}", progress_line(result, progress_.step, config_.train.steps,
                                     timed > 0 ? outcome.seconds / double(timed) : result.seconds));
  }

  // False, on every rank, when the checkpoint could not be written: training goes on without it.
  bool save() {
    const Region region("annulus::train::save");
    const comm::Watch::Doing doing(
        world_.watch(), fmt::format("the checkpoint of update {}, which rank 0 writes", progress_.step),
        config_.file_stall_limit());
    std::int32_t saved = 1;
    if (folder_) {
      const auto file = folder_->checkpoints().file_of(progress_.step);
      try {
        folder_->checkpoints().save(map_, progress_, buffers());
        spdlog::info("saved {}", file.string());
      } catch (const std::exception& error) {
        spdlog::error("the checkpoint of step {} was not saved, training goes on: {}", progress_.step,
                      error.what());
        saved = 0;
      }
    }
    world_.broadcast(exec_, &saved, sizeof saved, 0);
    return saved != 0;
  }

  void announce() const {
    if (!folder_) return;
    const model::LlamaConfig& m = config_.model;
    spdlog::info(
        "LLaMA of {:.2f} M parameters: {} layers, hidden {}, {} heads, {} kv heads, head_dim {}, vocabulary "
        "{}",
        double(map_.size()) / 1e6, m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.vocabulary);
    spdlog::info("{} tokens in {} shards give {} sequences of {}", dataset_->tokens(),
                 dataset_->shards().size(), dataset_->sequences(), dataset_->sequence_tokens());
    spdlog::info("{} data-parallel groups of {} context-parallel ranks ({}; {}); attention {} / {} / {}",
                 groups_.data_groups, groups_.context->size(), world_.description(),
                 world_.topology().to_string(), attention_.schedule(), attention_.layout().to_string(),
                 config_.attention.mask);
    if (config_.attention.schedule == simulate::automatic || config_.attention.layout == simulate::automatic)
      spdlog::info("attention was chosen: schedule {}, layout {}", attention_.schedule(),
                   attention_.layout().to_string());
    if (resumed_)
      spdlog::info("going on after step {} of {}", progress_.step, folder_->resume_from()->string());
  }

  const Exec& exec_;
  comm::Communicator& world_;
  const StopSignal stop_;
  std::shared_ptr<const data::TokenDataset> dataset_;
  const Config config_;
  Groups groups_;
  SequenceAttention attention_;
  model::Llama<Exec> llama_;
  const model::ParameterMap& map_;
  Owned<Array1<float, Exec>> parameters_, gradients_;
  optim::AdamW<Exec> optimizer_;
  optim::GradientClipper<Exec> clipper_;
  const optim::LearningRateSchedule schedule_;
  Progress progress_;
  bool resumed_ = false;
  std::optional<RunFolder> folder_;  // rank 0's
  std::optional<data::Loader> loader_;
  annulus::detail::MemoryCharge data_charge_;
};

}  // namespace

Outcome train(const HostExec& exec, comm::Communicator& world, Config config, const ResumePolicy& resume) {
  return Run(exec, world, std::move(config), resume).run();
}

}  // namespace annulus::train
