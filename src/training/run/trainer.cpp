#include <annulus/training/run/trainer.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>

#include <annulus/base/error.hpp>

#include "attention/comm/watchdog.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/units.hpp"
#include "training/checkpoint/kept_files.hpp"
#include "training/data/loader.hpp"
#include "training/io/atomic.hpp"
#include "training/io/logging.hpp"
#include "training/linalg/matmul.hpp"
#include "training/run/config/agreement.hpp"
#include "training/run/config/batch_schedule.hpp"
#include "training/run/dump.hpp"
#include "training/run/groups.hpp"
#include "training/run/hooks.hpp"
#include "training/run/initial_state.hpp"
#include "training/run/passes/plan_agreement.hpp"
#include "training/run/planner/memory_needs.hpp"
#include "training/run/planner/memory_planner.hpp"
#include "training/run/planner/plan_memory.hpp"
#include "training/run/reading/reading.hpp"
#include "training/run/report.hpp"
#include "training/run/run_data.hpp"
#include "training/run/saving/run_folder.hpp"
#include "training/run/saving/saver.hpp"
#include "training/run/state/learner.hpp"
#include "training/run/state/replicas.hpp"
#include "training/run/state/step_parts.hpp"
#include "training/run/stop_signal.hpp"
#include "training/run/stragglers.hpp"
#include "training/run/validation.hpp"

namespace annulus::training {

namespace {

class Run {
 public:
  Run(comm::Communicator& world, Config config, AttentionInputs inputs, const ResumePolicy& resume,
      const DumpRequest& dump, const Hooks& hooks)
      : world_(world),
        dump_(dump),
        hooks_(hooks),
        data_(open_training_data(world, config)),
        config_(complete(std::move(config), data_.tokenizer())),
        context_(context_group(world, config_.parallel)),
        batches_(config_.train, data_groups()),
        validation_(world, *context_, open_validation(world, config_, data_.tokenizer()),
                    config_.train.validate_sequences),
        learner_(make_learner(std::move(inputs))) {
    agree_on_kernels(world, config_.parallel.mixed_hardware, learner_->kernel(),
                     learner_->plans().problem().mask);
    hardware_ = {.fingerprint = hardware_of(run_.step.on_gpu, hooks, learner_->kernel()).fingerprint(),
                 .on_gpu = run_.step.on_gpu};
    computed_with_ = computed_with(world, run_.step.on_gpu, hooks, learner_->kernel());
    if (world.rank() == 0) folder_.emplace(config_, resume);
    start();
    stragglers_.emplace(world, run_.step.on_gpu);
    saver_.emplace(world, *learner_, folder_ ? &folder_->checkpoints() : nullptr, run_.saving, hooks_);
    if (run_.saving.stop_within.count() > 0) saver_->save_early([this] { return stop_.received(); });
    learner_->state().set_gate([this](std::int64_t end) {
      if (hooks_.gated) hooks_.gated(progress_.step + 1, world_.rank());
      saver_->gate(end);
    });
    dump_.check(progress_.step + 1, config_.steps(), folder_.has_value());
    check_replicas("before the first optimizer step");
  }

  Outcome run() {
    announce();
    Outcome outcome;
    outcome.first_step = progress_.step;
    outcome.steps = config_.steps();
    outcome.schedule = learner_->plans().attention().schedule;
    outcome.layout = learner_->plans().problem().layout.to_string();
    outcome.device = learner_->description();
    outcome.transport = world_.description();
    Tally tally;
    while (progress_.step < config_.steps() && outcome.stop_signal == 0) {
      StepResult result = step(tally.seconds_per_step());
      if (result.damaged_data != 0) verification_->complete(outcome.first_step + 1, progress_.step);
      saver_->advance(result.saving != 0);
      outcome.stop_signal = result.stop_signal;
      if (validation_is_due(result)) outcome.stop_signal = validate(result);
      const std::int64_t every = config_.train.check_replicas;
      const bool last = outcome.stop_signal != 0 || progress_.step >= config_.steps();
      const bool due = last || (run_.saving.every > 0 && progress_.step % run_.saving.every == 0);
      if (due || (every > 0 && progress_.step % every == 0))
        check_replicas(fmt::format("after optimizer step {}", progress_.step));
      tally.add(result);
      if (!result.validation.empty()) outcome.validation = result.validation;
      report(result, progress_.step == outcome.first_step + 1,
             tally.seconds_per_token() * double(tokens_from(progress_.step)));
      if (due) save(last);
    }
    outcome.last_step = progress_.step;
    tally.write(outcome, world_.size());
    outcome.predicted_memory = planned_.predicted;
    outcome.failed_saves = saver_->failed();
    outcome.last_save_failed = saver_->last_failed();
    outcome.last_checkpoint = saver_->last_saved();
    if (outcome.last_checkpoint.empty() && resumed_ && folder_)
      outcome.last_checkpoint = folder_->resume_from()->path().string();
    const bool verified = !verification_ || verification_->complete(outcome.first_step + 1, progress_.step);
    if (world_.rank() == 0) conclude(outcome, verified);
    return outcome;
  }

 private:
  // Resolves the configuration.
  std::unique_ptr<Learner> make_learner(AttentionInputs inputs) {
    config_.train.total_steps = total_steps(config_, batches_, data_.sequences());
    config_.check();  // what goes with this length
    inputs.documents = typical_documents(data_, config_);
    if (inputs.cluster) cluster_rates_ = simulator::rates_text(*inputs.cluster, config_.attention.cluster);
    inputs.world = world_.topology();
    if (hooks_.make_plan) inputs.make_plan = hooks_.make_plan;
    SequencePlans plans(context_->rank(), resolve_attention(config_, context_->topology(), inputs));
    planned_ = resolve_memory(world_, *context_, config_, plans.attention(),
                              inputs.cluster ? *inputs.cluster : simulator::default_cluster(), hooks_);
    config_.memory = planned_.memory;
    run_ = resolve(config_, world_.topology(), computes_on_gpu(config_));
    if (hooks_.attention) hooks_.attention(run_.attention, world_.rank());
    std::optional<SequencePlans> validation;
    if (auto attention = resolve_validation(config_, plans.attention()))
      validation.emplace(context_->rank(), *std::move(attention), SequencePlans::Passes::forward);
    plans.recompute_before(run_.step.activations.early_positions);
    return training::make_learner(world_, *context_, run_, plans, validation ? &*validation : nullptr);
  }

  void conclude(const Outcome& outcome, bool verified) const {
    if (steps_without_targets_ > 0)
      logging::warn("{} of {} optimizer steps had no targets: their losses of 0 say nothing",
                    steps_without_targets_, outcome.last_step - outcome.first_step);
    else if (blank_sequences_ > 0)
      logging::warn("{} of {} sequences had no token that counts as a target, and added nothing",
                    blank_sequences_,
                    batches_.before(outcome.last_step) - batches_.before(outcome.first_step));
    if (!verified)
      logging::info(
          "the run ended before all shards were compared with their checksums: "
          "annulus-tokens verify does that");
    if (outcome.last_step == outcome.first_step)
      logging::info("nothing to do: {} of {} optimizer steps are done (raise {} to go further)",
                    outcome.last_step, config_.steps(), length_key());
    else if (outcome.last_save_failed)
      logging::error(
          "the state after optimizer step {} could not be saved (see above); the last good checkpoint is {}: "
          "make room and run the same command again",
          outcome.last_step, outcome.last_checkpoint.empty() ? "none" : outcome.last_checkpoint);
    else if (outcome.stop_signal != 0)
      logging::info("stopped by {} after optimizer step {}: the same command resumes there",
                    stop_cause(outcome.stop_signal), outcome.last_step);
    if (outcome.last_step == outcome.first_step) return;
    logging::info(
        "optimizer step {} of {} reached: loss {:.4f}, at first {:.4f} "
        "(means over up to ten steps), {:.0f} tokens/s",
        outcome.last_step, config_.steps(), outcome.last_loss, outcome.first_loss, outcome.tokens_per_second);
    logging::info("next: annulus-report {} --html report.html draws the run{}", config_.run.folder,
                  outcome.last_step < config_.steps()
                      ? ""
                      : fmt::format("; with a larger {} it goes on", length_key()));
  }

  // The key that says how long the run is.
  const char* length_key() const {
    return config_.train.steps > 0    ? "train.steps"
           : config_.train.tokens > 0 ? "train.tokens"
                                      : "train.epochs";
  }
  int data_groups() const { return world_.size() / context_->size(); }
  // Tokens of the optimizer steps from `step` on, counted from 0, to the end of the run.
  std::int64_t tokens_from(std::int64_t step) const {
    return (batches_.before(config_.steps()) - batches_.before(step)) * run_.step.tokens;
  }

  // Ends the run when this rank's parameters and moments are not those of the others.
  void check_replicas(const std::string& when) const {
    if (world_.size() == 1) return;
    const Region region("annulus::training::check_replicas");
    for (const Copies& copies : learner_->state().copies())
      require_same_replicas(world_, learner_->map(), copies, hardware_, when);
  }

  // Initial parameters, or those of the checkpoint, on every rank; then the loader where it is to go on.
  void start() {
    const Region region("annulus::training::start");
    const comm::Watchdog::ActivityScope activity(
        world_.watchdog(), "the start of the run, for which ranks read files", run_.saving.file_timeout);
    const bool resume = world_.all_reduce_value<std::int32_t>(folder_ && folder_->resume_from() ? 1 : 0,
                                                              comm::ReduceOp::max) != 0;
    if (resume) {
      progress_ = restore(world_, *learner_, folder_ ? &*folder_ : nullptr);
      read_on_ = read_on(progress_, data_);
      require_same_batch();
      resumed_ = true;
      for (const std::string& note : computed_with_notes(progress_.computed_with, computed_with_))
        if (folder_) logging::warn("{}", note);
    } else if (!config_.model_from.empty()) {
      start_from_weights(world_, *learner_, config_, data_.tokenizer());
    } else {
      if (folder_) checkpoint::write_kept_files(config_.run.folder, {});  // of a start that came to nothing
      learner_->state().initialize(static_cast<std::uint64_t>(config_.run.seed));
    }
    share_schedule();
    progress_.global_batch_size = batches_.full();
    progress_.config = config_.to_toml();
    progress_.computed_with = computed_with_;
    data::LoaderOptions options;
    if (learner_->plans().attention().cuts_sequences()) agreement_ = PlanAgreement::among(*context_);
    options.rows = learner_->plans().rank_rows(agreement_);
    options.dealing = learner_->plans().dealing();
    options.dealing.sequences = [this, first = progress_.step](std::int64_t number) {
      return batches_.of_step(first + number) / data_groups();
    };
    options.prefetch = prefetched_sequences(learner_->plans().attention(), run_.step);
    options.groups = data_groups();
    options.group = world_.rank() / context_->size();
    options.seed = static_cast<std::uint64_t>(config_.data.seed);
    options.shuffle = config_.data.shuffle;
    options.start = read_on_.state;
    loader_.emplace(data_, options);
    keep_reading(data_, loader_->state(), progress_);
    if (config_.data.verify) verification_.emplace(world_, data_);
    data_charge_ =
        annulus::detail::MemoryCharge(MemoryKind::host, MemoryCategory::data,
                                      sequence_bytes(run_.step, options.rows.rows.count, options.prefetch));
    if (folder_) folder_->start_metrics(progress_.step);
  }

  // Another number of ranks may share an optimizer step, but the step must read as many sequences.
  void require_same_batch() const {
    require(progress_.global_batch_size == batches_.full(),
            "an optimizer step of the checkpoint's run reads {} sequences, one of this run {} ({} "
            "data-parallel groups of train.micro_batches = {}): start another number of ranks, or change "
            "train.micro_batches or parallel.context",
            progress_.global_batch_size, batches_.full(), data_groups(), config_.train.micro_batches);
  }

  // Rank 0 knows the length of the schedule, which may be the checkpoint's.
  void share_schedule() {
    if (folder_) config_.train.schedule_steps = folder_->config().train.schedule_steps;
    world_.broadcast(HostExec(), &config_.train.schedule_steps, sizeof config_.train.schedule_steps, 0);
    run_.optimizer.learning_rate = config_.learning_rate();
  }

  // `expected`: seconds that steps took; 0 before the first.
  StepResult step(double expected) {
    const Region region("annulus::training::step");
    const Kokkos::Timer timer;
    const std::int64_t step = progress_.step + 1;
    const comm::Watchdog::ActivityScope activity(world_.watchdog(), fmt::format("optimizer step {}", step));
    const std::vector<data::Sequence> sequences = next_sequences();
    const double read = timer.seconds();
    // The state before the first step is saved already, or not worth it.
    if (expected > 0) saver_->begin_update(progress_, expected);
    // Not the first one of this run: what is kept from step to step is there by then.
    const bool traces = ++steps_here_ >= 2 && folder_ && !memory_saved_ && !dump_.is_of(step);
    std::vector<prediction::MomentMemory> moments;
    const auto update = [&](dump::Recorder* recorder) {
      return learner_->update(step, run_.optimizer.learning_rate.at(step - 1), sequences,
                              progress_.skipped_in_a_row < config_.train.skip_non_finite, recorder,
                              traces ? &moments : nullptr);
    };
    StepResult result = dump_.is_of(step)
                            ? dump_.record(world_, progress_, batches_.of_step(step - 1), run_, *learner_,
                                           [&](dump::Recorder& recorder) { return update(&recorder); })
                            : update(nullptr);
    saver_->end_update();
    if (traces && !result.skipped()) save_memory(moments);
    count_skipped(result);
    if (hooks_.updated) hooks_.updated(step, learner_->state().held_buffers());
    progress_.step = step;
    note_sequences(sequences, batches_.of_step(step - 1), result);
    result.sets = sets_read(progress_.sets, data_, loader_->state(), result);
    keep_reading(data_, loader_->state(), progress_);
    result.seconds = timer.seconds();
    share_parts(read, result);
    memory_.observe();
    result.memory = memory_.peaks();
    result.stop_signal = stop_.received();
    result.saving = saver_->writing() ? 1 : 0;
    result.damaged_data = verification_ && verification_->found_damage() ? 1 : 0;
    take_maxima(world_, result);
    result.slowest = stragglers_->observe(result.compute);
    return result;
  }

  // Of the seconds of a step, the part that is not in `update` is outside of the queue whose time it has.
  void share_parts(double read, StepResult& result) const {
    std::vector<double>& parts = result.part_seconds;
    if (parts.empty()) return;
    parts[static_cast<std::size_t>(StepPart::data)] += read;
    parts[static_cast<std::size_t>(StepPart::other)] +=
        std::max(0.0, result.seconds - std::reduce(parts.begin(), parts.end()));
    world_.all_reduce(Queue(Kokkos::DefaultHostExecutionSpace()), parts.data(), parts.size(), DType::f64,
                      comm::ReduceOp::sum);
    for (double& seconds : parts) seconds /= world_.size();
  }

  void count_skipped(StepResult& result) {
    progress_.skipped_in_a_row = result.skipped() ? progress_.skipped_in_a_row + 1 : 0;
    if (result.skipped()) ++progress_.skipped_steps;
    result.skipped_steps = progress_.skipped_steps;
    if (folder_ && result.skipped())
      logging::warn(
          "{}. The step was skipped: parameters and moments stay, the data go on (number {} in a row, "
          "train.skip_non_finite = {}; {} of the run)",
          result.not_finite, progress_.skipped_in_a_row, config_.train.skip_non_finite,
          progress_.skipped_steps);
  }

  // What this rank knows of its group's sequences, of which take_maxima makes what all know of all.
  void note_sequences(const std::vector<data::Sequence>& mine, std::int64_t all, StepResult& result) const {
    result.sequences.resize(static_cast<std::size_t>(all));
    const std::size_t first = mine.size() * static_cast<std::size_t>(world_.rank() / context_->size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const bool counted = std::ranges::any_of(
          mine[i].targets, [](std::int32_t target) { return target != data::ignored_target; });
      result.sequences[first + i] = {.counted = counted ? 1 : 0, .gap = mine[i].gap};
    }
  }

  bool validation_is_due(const StepResult& result) const {
    if (config_.data.validation.empty() || result.stop_signal != 0) return false;
    const std::int64_t every = config_.train.validate_every;
    return progress_.step >= config_.steps() || (every > 0 && progress_.step % every == 0);
  }

  // Behind an optimizer step. Returns the signal that any rank has received, 0 if none has.
  int validate(StepResult& result) {
    const Region region("annulus::training::validate");
    const Kokkos::Timer timer;
    const comm::Watchdog::ActivityScope activity(
        world_.watchdog(), fmt::format("the validation behind optimizer step {}", progress_.step));
    const auto losses =
        validation_.run(*learner_->evaluator(progress_.step), [this] { return stop_.received() != 0; });
    if (losses) {
      result.validation = *losses;
      result.validation_seconds = timer.seconds();
    }
    memory_.observe();
    result.memory = memory_.peaks();
    result.stop_signal = stop_.received();
    take_maxima(world_, result);
    return result.stop_signal;
  }

  // Rank 0's memory over an optimizer step, as it was predicted and as it was.
  void save_memory(const std::vector<prediction::MomentMemory>& measured) {
    memory_saved_ = true;
    const nlohmann::json memory = {{"format_version", 1},
                                   {"predicted", moments_json(planned_.predicted.moments)},
                                   {"measured", moments_json(measured)}};
    try {
      io::write_text_atomically(std::filesystem::path(config_.run.folder) / "memory.json",
                                memory.dump(2) + "\n", Links::refuse);
    } catch (const Error& error) {
      logging::warn("memory over an optimizer step was not saved: {}", error.what());
    }
  }

  std::vector<data::Sequence> next_sequences() {
    const Region region("annulus::training::data");
    std::vector<data::Sequence> sequences;
    // Readers that agree on plans wait for one another, which no watchdog sees: this rank waits with its own.
    comm::Watchdog* const watchdog = agreement_ ? world_.watchdog() : nullptr;
    const comm::Watchdog::ActivityScope activity(
        watchdog, "the next sequences, on whose plans the threads that read ahead agree",
        run_.saving.file_timeout);
    const comm::Watchdog::Waiting waiting(watchdog);
    const std::int64_t count = batches_.of_step(progress_.step) / data_groups();
    for (std::int64_t i = 0; i < count; ++i) sequences.push_back(loader_->next());
    return sequences;
  }

  void report(StepResult& result, bool first, double seconds_left) {
    if (!folder_) return;
    if (result.targets == 0 && steps_without_targets_++ == 0)
      logging::warn(
          "optimizer step {}: none of its {} tokens has a target, as each ends a document: its loss is 0, "
          "and nothing is learnt (pack longer documents; annulus-tokens info shows what data.shards hold)",
          progress_.step, result.tokens);
    if (result.targets > 0 && result.blank_sequences() > 0 && blank_sequences_ == 0)
      logging::warn(
          "optimizer step {}: {} of its {} sequences have no token that counts as a target: they add nothing "
          "to loss and gradient (the loss_mask of the shards says what counts; this is said once)",
          progress_.step, result.blank_sequences(), result.sequences.size());
    blank_sequences_ += result.blank_sequences();
    result.spike = folder_->spikes().observe(result.loss, result.gradient_norm);
    const ReportOptions options{.ranks = world_.size(),
                                .peak_tflops = config_.run.peak_tflops,
                                .started_after = progress_.step - steps_here_,
                                .steps = config_.steps(),
                                .predicted = planned_.predicted};
    folder_->write_metrics(metrics_record(result, options, progress_.step,
                                          batches_.before(progress_.step) * run_.step.tokens,
                                          progress_.epoch));
    if (!result.audit.empty()) folder_->write_attention(attention_record(result, progress_.step));
    for (const std::string& note : epoch_notes(result.sets))
      logging::info("step {}: {}", progress_.step, note);
    if (!result.validation.empty())
      logging::info("step {}: validation loss {}, in {}", progress_.step, text(result.validation),
                    duration_text(result.validation_seconds));
    if (!result.part_seconds.empty())
      logging::info("step {}: {}", progress_.step, parts_text(result.part_seconds));
    if (std::isfinite(result.loss)) unlogged_losses_.push_back(result.loss);
    if (!first && progress_.step % config_.train.log_every != 0 && progress_.step != config_.steps()) return;
    const double mean =
        std::reduce(unlogged_losses_.begin(), unlogged_losses_.end()) / double(unlogged_losses_.size());
    unlogged_losses_.clear();
    logging::info("{}", progress_line(result, options, progress_.step, mean, seconds_left));
  }

  void save(bool last) {
    const Region region("annulus::training::save");
    const comm::Watchdog::ActivityScope activity(
        world_.watchdog(), fmt::format("the checkpoint of optimizer step {}", progress_.step),
        run_.saving.file_timeout);
    saver_->save(progress_, last);
  }

  // A table of what the run is, then what is worth a line of its own.
  void announce() const {
    if (!folder_) return;
    const SequencePlans& plans = learner_->plans();
    // What was chosen for the rates of another machine may be slow here.
    const std::string rates =
        config_.attention.cluster.empty()
            ? fmt::format("{} (attention.cluster names another; annulus-bench links measures)",
                          simulator::default_cluster_text)
            : cluster_rates_;
    const auto row = [](std::string_view name, const std::string& text) {
      if (!text.empty()) logging::info("{:<10} {}", name, text);
    };
    const model::Config& m = config_.model;
    row("model",
        fmt::format(
            "{:.2f} M parameters: layers {}, hidden {}, heads {}, kv heads {}, head_dim {}, vocabulary {}",
            double(learner_->map().size()) / 1e6, m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim,
            m.vocabulary));
    for (std::size_t i = 0; i < data_.sets().size(); ++i) row("data", data_text(data_, i));
    for (const ValidationSet& set : validation_.sets())
      row("validation",
          fmt::format("{}: {} tokens, {} of its {} sequences of {} measured {}", set.name,
                      set.dataset->tokens(), validation_.sequences_of(set), set.dataset->sequences(),
                      set.dataset->sequence_tokens(),
                      config_.train.validate_every > 0
                          ? fmt::format("every {} steps and at the end", config_.train.validate_every)
                          : std::string("at the end")));
    row("batch",
        fmt::format("{} sequences, {} tokens: DP {} × {} micro-batches, {} at a time", batches_.full(),
                    batches_.full() * run_.step.tokens, data_groups(), config_.train.micro_batches,
                    config_.train.sequences_per_pass) +
            (config_.train.ramp_sequences > 0
                 ? fmt::format("; {} at first, {} more at a time over {} sequences", config_.train.ramp_start,
                               config_.train.ramp_increment, config_.train.ramp_sequences)
                 : ""));
    if (config_.train.steps == 0)
      row("length", fmt::format("{} = {}: {} optimizer steps", length_key(),
                                config_.train.tokens > 0 ? fmt::format("{}", config_.train.tokens)
                                                         : fmt::format("{}", config_.train.epochs),
                                config_.steps()));
    row("ranks", fmt::format("{} = DP {} × CP {}, {}; {}", world_.size(), data_groups(), context_->size(),
                             world_.topology().to_string(), world_.description()));
    row("state", learner_->state().description());
    if (config_.uses_muon())
      row("optimizer", fmt::format("Muon on the matrices of layers, momentum {}; AdamW on the rest",
                                   config_.train.momentum));
    row("device", learner_->description());
    row("layers", fmt::format("{}", fmt::join(m.pattern, ", ")));
    row("attention", fmt::format("schedule {}, layout {}, mask {}{}", plans.attention().schedule,
                                 plans.problem().layout.to_string(), config_.attention.mask,
                                 plans.attention().chosen ? "; chosen by rates of " + rates : ""));
    if (!planned_.reason.empty())
      row("recompute",
          fmt::format("memory.recompute = 'auto' took {}; by rates of {}", planned_.reason, rates));
    const bool on_gpu = planned_.predicted.device.total > 0;
    const prediction::PeakBytes& peak = on_gpu ? planned_.predicted.device : planned_.predicted.host;
    row("memory",
        fmt::format("{} of a rank's {} predicted ({}), most in '{}'; {}", bytes_text(peak.total),
                    on_gpu ? "GPU" : "host", bytes_text(peak.at_once), peak.moment, planned_.available));
    row("time", planned_.step_seconds > 0
                    ? fmt::format("{} a step predicted, {} for the {} steps ahead; by rates of {}",
                                  duration_text(planned_.step_seconds),
                                  duration_text(planned_.step_seconds * double(tokens_from(progress_.step)) /
                                                double(batches_.full() * run_.step.tokens)),
                                  config_.steps() - progress_.step, rates)
                    : "not predicted: attention.cluster names no rates of this machine (annulus-bench links "
                      "measures them)");
    if (const std::string warning = learner_->warning(); !warning.empty())
      logging::warn("{} (attention.kernel = 'tensor_cores' makes an error of this)", warning);
    if (const std::string warning = on_gpu ? "" : linalg::host_blas_warning(); !warning.empty())
      logging::warn("{}", warning);
    if (const double imbalance = plans.imbalance_before(); imbalance > 1.1)
      logging::warn(
          "memory.recompute = 'sequence-selective': the ranks share the attention of the earlier positions "
          "unevenly under attention.layout = '{}', the busiest computes {:.2f} times the mean again: striped "
          "shares it evenly (docs/memory.md)",
          plans.problem().layout.to_string(), imbalance);
    if (resumed_)
      logging::info(
          "resumed after optimizer step {} from {}{}", progress_.step,
          folder_->resume_from()->path().string(),
          config_.model_from.empty() ? "" : "; the weights of model.from were read when the run began");
    for (const std::string& note : read_on_.notes) logging::info("{}", note);
    for (const std::string& note : learning_rate_notes(folder_->before(), config_, progress_.step))
      logging::info("{}", note);
  }

  comm::Communicator& world_;
  Dump dump_;
  const Hooks& hooks_;
  const StopSignal stop_;
  data::Blend data_;
  ReadOn read_on_;  // of a run that goes on
  Config config_;
  std::unique_ptr<comm::Communicator> context_;
  const BatchSchedule batches_;
  Validation validation_;
  std::string cluster_rates_;  // whose they are, where attention.cluster is given
  RunMemory planned_;
  ResolvedRun run_;
  std::unique_ptr<Learner> learner_;
  ReplicaHardware hardware_;
  std::map<std::string, std::string> computed_with_;  // for checkpoints
  checkpoint::Progress progress_;
  MemoryWatch memory_;
  std::optional<StragglerWatch> stragglers_;
  std::int64_t steps_here_ = 0;             // made or begun by this run
  bool memory_saved_ = false;               // memory.json
  std::int64_t steps_without_targets_ = 0;  // that rank 0 has reported
  std::int64_t blank_sequences_ = 0;        // without a token that counts, likewise
  std::vector<double> unlogged_losses_;     // since the last progress line
  bool resumed_ = false;
  std::optional<RunFolder> folder_;           // rank 0's
  std::shared_ptr<PlanAgreement> agreement_;  // of the loaders of the context-parallel group
  std::optional<data::Loader> loader_;
  std::optional<DataVerification> verification_;  // stops with the run
  annulus::detail::MemoryCharge data_charge_;
  std::optional<Saver> saver_;  // whose writer ends first
};

}  // namespace

Outcome train(comm::Communicator& world, Config config, const ResumePolicy& resume, const DumpRequest& dump) {
  return train(world, std::move(config), resume, dump, Hooks());
}

Outcome train(comm::Communicator& world, Config config, const ResumePolicy& resume, const DumpRequest& dump,
              const Hooks& hooks) {
  agree_to_start(world, config, dump, hooks);
  check_offload(config, hooks);
  AttentionInputs inputs = agree_on_inputs(world, config);
  return Run(world, std::move(config), std::move(inputs), resume, dump, hooks).run();
}

}  // namespace annulus::training
