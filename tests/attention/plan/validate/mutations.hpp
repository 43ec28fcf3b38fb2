#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <type_traits>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

namespace annulus::plan::test {

inline constexpr int mutated_ranks = 6;  // on 3 nodes

using Steps = std::vector<std::vector<Step>>;  // [rank][step]

/// A change of one entry. `wrong`: of every entry of a plan; others may be harmless.
template <class Entry>
struct Mutation {
  const char* what;
  void (*change)(Entry&);
  bool wrong = true;
};

inline const Mutation<Transfer> transfer_mutations[] = {
    {"owner", [](Transfer& t) { t.slice.owner = (t.slice.owner + 1) % mutated_ranks; }},
    {"last row", [](Transfer& t) { t.slice.rows.end -= 1; }},
    {"first head", [](Transfer& t) { t.slice.heads.begin += 1; }},
    {"tensor", [](Transfer& t) { t.slice.tensor = t.slice.tensor == Tensor::q ? Tensor::d_o : Tensor::q; }},
    {"wire", [](Transfer& t) { t.wire = DType::f16; }},
    {"peer", [](Transfer& t) { t.peer = (t.peer + 1) % mutated_ranks; }},
    {"channel",
     [](Transfer& t) {
       t.channel = t.channel == Channel::gradients ? Channel::activations : Channel::gradients;
     }},
    {"no wait", [](Transfer& t) { t.wait = t.post; }},
    {"longer wait", [](Transfer& t) { t.wait += 1; }, false},
    {"post", [](Transfer& t) { t.post += 1; }}};
inline const Mutation<Transfer> send_mutations[] = {{"slot", [](Transfer& t) { t.slot += 1; }}};
inline const Mutation<Compute> compute_mutations[] = {
    {"q slot", [](Compute& c) { c.q_slot += 1; }},
    {"kv slot", [](Compute& c) { c.kv_slot += 1; }},
    {"out slot", [](Compute& c) { c.out_slot += 1; }},
    {"queries", [](Compute& c) { c.q_shard = (c.q_shard + 1) % mutated_ranks; }},
    {"keys", [](Compute& c) { c.kv_shard = (c.kv_shard + 1) % mutated_ranks; }},
    {"last head", [](Compute& c) { c.heads.end -= 1; }}};
inline const Mutation<Clear> clear_mutations[] = {
    {"slot", [](Clear& c) { c.slot += 1; }},
    {"owner", [](Clear& c) { c.slice.owner = (c.slice.owner + 1) % mutated_ranks; }},
    {"first row", [](Clear& c) { c.slice.rows.begin += 1; }}};

/// Calls `check(steps, wrong, what)` with the steps in which one entry is missing, is there twice, or has one
/// field changed; for all entries and changes. Takes a copy: `check` may write where the steps come from.
template <class Check>
void for_each_mutation(const Steps original, const Check& check) {
  const auto each = [&](auto list, const char* what, bool wrong, const auto& change) {
    for (std::size_t rank = 0; rank < original.size(); ++rank) {
      for (std::size_t step = 0; step < original[rank].size(); ++step) {
        for (std::size_t i = 0; i < (original[rank][step].*list).size(); ++i) {
          Steps changed = original;
          change(changed[rank][step].*list, i);
          check(changed, wrong, fmt::format("{}: rank {} step {} entry {}", what, rank, step, i));
        }
      }
    }
  };
  const auto fields = [&](auto list, const auto& mutations) {
    for (const auto& m : mutations)
      each(list, m.what, m.wrong, [&](auto& entries, std::size_t i) { m.change(entries[i]); });
  };
  const auto all = [&](auto list, const auto& mutations) {
    const bool needed_once = !std::is_same_v<decltype(list), std::vector<Clear> Step::*>;
    each(list, "dropped", true, [](auto& entries, std::size_t i) {
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(i));
    });
    each(list, "doubled", needed_once, [](auto& entries, std::size_t i) {
      const auto entry = entries[i];
      entries.push_back(entry);
    });
    fields(list, mutations);
  };
  all(&Step::clears, clear_mutations);
  all(&Step::sends, transfer_mutations);
  fields(&Step::sends, send_mutations);
  all(&Step::receives, transfer_mutations);
  all(&Step::computes, compute_mutations);
}

}  // namespace annulus::plan::test
