#include "training/run/reading/reading.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include <annulus/base/error.hpp>

namespace annulus::training {

namespace {

using checkpoint::SetProgress;

/// What a set is called in messages.
std::string key_of(std::string_view set) {
  return set.empty() ? std::string("data.shards") : fmt::format("set '{}' of data.sets", set);
}

std::string weights_text(const std::vector<SetProgress>& sets) {
  std::string text;
  for (const SetProgress& set : sets)
    text += fmt::format("{}{} {:.6g}", text.empty() ? "" : ", ", set.name, double(set.weight) * 1e-6);
  return text;
}

/// Progress of each set of the data; of the one set where the program that wrote the checkpoint knew
/// data.shards alone.
std::vector<SetProgress> sets_of(const checkpoint::Progress& progress, const data::Blend& data) {
  if (!progress.sets.empty()) return progress.sets;
  const auto& set = data.sets().front();
  return {{.name = "",
           .weight = set.weight,
           .epoch = progress.epoch,
           .sequences_read = progress.sequences_read,
           .sequences = 0,
           .drawn = 0,
           .shards = std::ssize(set.dataset->shards()),
           .fingerprint = progress.data_fingerprint}};
}

/// The shards that were read are the first ones still. Notes which are new.
data::SetState continued(const SetProgress& before, const data::Blend::Set& set,
                         std::vector<std::string>& notes) {
  const std::string key = key_of(set.name);
  const std::int64_t known = before.shards, now = std::ssize(set.dataset->shards());
  require(known <= now && set.dataset->fingerprint(static_cast<std::size_t>(known)) == before.fingerprint,
          "{} hold other tokens than those the checkpoint was trained on ({} shards): give the same shards, "
          "new ones behind them alone (folders are read in the order of the names in them), or start anew in "
          "another run.folder",
          key, known);
  data::SetState state{
      .at = {before.epoch, before.sequences_read}, .sequences = before.sequences, .drawn = before.drawn};
  if (now == known) return state;
  if (before.sequences_read == 0) state.sequences = 0;  // its epoch has not begun
  notes.push_back(fmt::format("{}: {} new shards, {} sequences instead of {}: they are read from epoch {} on",
                              key, now - known, set.dataset->sequences(),
                              set.dataset->sequences(static_cast<std::size_t>(known)),
                              before.epoch + (state.sequences == 0 ? 0 : 1)));
  return state;
}

}  // namespace

void keep_reading(const data::Blend& data, const data::BlendState& state, checkpoint::Progress& progress) {
  progress.sets.clear();
  for (std::size_t i = 0; i < data.sets().size(); ++i) {
    const data::Blend::Set& set = data.sets()[i];
    progress.sets.push_back({.name = set.name,
                             .weight = set.weight,
                             .epoch = state[i].at.epoch,
                             .sequences_read = state[i].at.index,
                             .sequences = state[i].sequences,
                             .drawn = state[i].drawn,
                             .shards = std::ssize(set.dataset->shards()),
                             .fingerprint = set.dataset->fingerprint()});
  }
  const SetProgress& least = *std::ranges::min_element(progress.sets, {}, &SetProgress::epoch);
  const bool one = progress.sets.size() == 1;
  progress.epoch = least.epoch;
  progress.sequences_read = one ? least.sequences_read : 0;
  progress.data_fingerprint = one ? least.fingerprint : 0;
}

ReadOn read_on(const checkpoint::Progress& progress, const data::Blend& data) {
  ReadOn on;
  const std::vector<SetProgress> before = sets_of(progress, data);
  require(before.front().name.empty() == data.sets().front().name.empty(),
          "the checkpoint was trained on {}, this run reads {}: give the key of the checkpoint's run, or "
          "start anew in another run.folder",
          before.front().name.empty() ? "data.shards" : "data.sets",
          before.front().name.empty() ? "data.sets" : "data.shards");
  std::vector<SetProgress> now;
  bool same = before.size() == data.sets().size();
  for (const data::Blend::Set& set : data.sets()) {
    now.push_back({.name = set.name, .weight = set.weight});
    const auto found = std::ranges::find(before, set.name, &SetProgress::name);
    if (found == before.end()) {
      on.notes.push_back(fmt::format("{} is new: it is read from its first sequence on", key_of(set.name)));
      on.state.emplace_back();
      same = false;
      continue;
    }
    same = same && found->weight == set.weight;
    on.state.push_back(continued(*found, set, on.notes));
  }
  for (const SetProgress& set : before)
    if (std::ranges::find(now, set.name, &SetProgress::name) == now.end())
      on.notes.push_back(fmt::format("{} is left out, after {} epochs and {} sequences", key_of(set.name),
                                     set.epoch, set.sequences_read));
  if (same) return on;
  for (data::SetState& set : on.state) set.drawn = 0;
  on.notes.push_back(
      fmt::format("the weights of data.sets are {} instead of {}: shares count from optimizer step {} on",
                  weights_text(now), weights_text(before), progress.step + 1));
  return on;
}

std::vector<SetRead> sets_read(const std::vector<SetProgress>& before, const data::Blend& data,
                               const data::BlendState& now, const StepResult& result) {
  std::vector<SetRead> read;
  const SetLoss whole{.loss = result.loss * double(result.targets), .targets = result.targets};
  for (std::size_t i = 0; i < now.size() && !data.sets()[i].name.empty(); ++i) {
    const data::SetState& set = now[i];
    const SetLoss& of = result.set_losses.empty() ? whole : result.set_losses[i];
    read.push_back({.name = before[i].name,
                    .sequences = set.drawn - before[i].drawn,
                    .targets = of.targets,
                    .loss = of.targets > 0 ? of.loss / double(of.targets) : 0,
                    .epochs = double(set.at.epoch) + double(set.at.index) / double(set.sequences),
                    .new_epoch = set.at.epoch > before[i].epoch});
  }
  return read;
}

std::vector<std::string> epoch_notes(const std::vector<SetRead>& sets) {
  std::vector<std::string> notes;
  for (const SetRead& set : sets)
    if (set.new_epoch)
      notes.push_back(fmt::format("{} has been read {} times; epoch {} follows", key_of(set.name),
                                  static_cast<std::int64_t>(set.epochs),
                                  static_cast<std::int64_t>(set.epochs)));
  return notes;
}

std::string data_text(const data::Blend& data, std::size_t set) {
  const auto& [name, weight, dataset] = data.sets()[set];
  const std::string front =
      name.empty() ? "" : fmt::format("{}: {:.4g} % of the sequences; ", name, 100 * data.share(set));
  const double all = double(dataset->sequences()) * double(dataset->sequence_tokens());
  const std::string gaps =
      dataset->gaps() == 0 ? "" : fmt::format(", {:.2f} % of them gaps", 100 * double(dataset->gaps()) / all);
  return fmt::format("{}{} tokens in {} shards, {} sequences of {}{}", front, dataset->tokens(),
                     dataset->shards().size(), dataset->sequences(), dataset->sequence_tokens(), gaps);
}

}  // namespace annulus::training
