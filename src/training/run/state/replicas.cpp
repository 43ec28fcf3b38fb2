#include "training/run/state/replicas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/agreement.hpp"
#include "attention/comm/gpu_ids.hpp"
#include "attention/comm/watchdog.hpp"
#include "base/fingerprint.hpp"

namespace annulus::training {

namespace {

struct Summary {
  std::uint64_t hardware = 0, hash = 0;  // of everything
  std::int64_t place = 0;
  friend bool operator==(const Summary&, const Summary&) = default;
};

/// Ranks of one place and kind of hardware that hold the same bits; those of more ranks come first, of
/// equally many the one with the lowest rank.
using Camp = std::vector<int>;
std::vector<Camp> camps_of(const std::vector<Summary>& ranks, const Summary& of) {
  std::map<std::uint64_t, Camp> by_hash;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].hardware == of.hardware && ranks[rank].place == of.place)
      by_hash[ranks[rank].hash].push_back(static_cast<int>(rank));
  std::vector<Camp> camps;
  for (auto& [hash, camp] : by_hash) camps.push_back(std::move(camp));
  std::ranges::sort(camps, {}, [](const Camp& camp) { return std::pair(-std::ssize(camp), camp.front()); });
  return camps;
}

/// "rank 3 (GPU 0000:1b:00.0 of node7)", for a few ranks each.
std::string who(const Camp& camp, const std::vector<comm::GpuId>& places, bool on_gpu) {
  constexpr std::size_t most = 4;
  if (camp.size() > most) return comm::ranks_text(camp);
  std::string text;
  for (const int rank : camp)
    text += fmt::format("{}rank {} ({})", text.empty() ? "" : ", ", rank,
                        comm::device_text(places[static_cast<std::size_t>(rank)], on_gpu));
  return text;
}

/// "the first moment of layers.0.qkv": the first tensor whose hashes differ.
std::string first_difference(const model::ParameterMap& map, std::span<const std::uint64_t> a,
                             std::span<const std::uint64_t> b) {
  constexpr std::array<const char*, 3> buffers = {"the parameter", "the first moment of",
                                                  "the second moment of"};
  const auto place = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const std::size_t tensors = map.all().size();
  return fmt::format("{} {}", buffers.at(place / tensors), map.all().at(place % tensors).name);
}

}  // namespace

void require_same_replicas(comm::Communicator& world, const model::ParameterMap& map, const Copies& mine,
                           const ReplicaHardware& hardware, const std::string& when) {
  if (world.size() == 1) return;
  const comm::Watchdog::ActivityScope activity(world.watchdog(), "the comparison of parameters and moments");
  const Queue host{HostExec()};
  const auto ranks = static_cast<std::size_t>(world.size());
  Fingerprint all;
  for (const std::uint64_t hash : mine.hashes) all.add(hash);
  const Summary summary{hardware.fingerprint, all.value(), mine.place};
  std::vector<Summary> summaries(ranks);
  world.all_gather(host, &summary, summaries.data(), sizeof summary);
  std::vector<Camp> camps;
  for (const Summary& s : summaries)
    if (camps.size() < 2) camps = camps_of(summaries, s);
  if (camps.size() < 2) return;

  std::vector<std::uint64_t> hashes(ranks * mine.hashes.size());
  world.all_gather(host, mine.hashes.data(), hashes.data(), mine.hashes.size() * sizeof(std::uint64_t));
  const std::vector<comm::GpuId> places = comm::gather_gpu_ids(world);
  const auto of = [&](int rank) {
    return std::span(hashes).subspan(static_cast<std::size_t>(rank) * mine.hashes.size(), mine.hashes.size());
  };
  const std::string tensor = first_difference(map, of(camps[0].front()), of(camps[1].front()));
  constexpr std::string_view advice =
      "Nothing was saved, and the checkpoints are as they were. Memory, processor or network has changed "
      "bits: run the same command again, which goes on from the newest checkpoint, and leave out the machine "
      "if it is named again";
  if (camps[0].size() > camps[1].size()) {
    Camp others;
    for (std::size_t i = 1; i < camps.size(); ++i)
      others.insert(others.end(), camps[i].begin(), camps[i].end());
    std::ranges::sort(others);
    fail(
        "{} not all ranks hold the same parameters and moments: "
        "{} of {} is not that of the other {} ranks. {}",
        when, tensor, who(others, places, hardware.on_gpu), camps[0].size(), advice);
  }
  std::string sides;
  for (const Camp& camp : camps) sides += (sides.empty() ? "" : " and ") + who(camp, places, hardware.on_gpu);
  fail(
      "{} not all ranks hold the same parameters and moments: {} differs between {}, and no side has a "
      "majority. {}",
      when, tensor, sides, advice);
}

}  // namespace annulus::training
