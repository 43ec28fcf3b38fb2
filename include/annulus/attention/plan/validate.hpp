#pragma once

#include <string>
#include <vector>

#include <annulus/attention/plan/period.hpp>
#include <annulus/attention/plan/plan.hpp>

namespace annulus::plan {

/// Proves a plan, or says what is wrong with it. Every entry is one violation, naming rank, step and slice:
/// - every unmasked (query, key, head) is computed exactly once, and nothing outside shards and heads;
/// - every compute and send finds the slice it reads in its slot;
/// - sums are conserved: every contribution to a gradient or an (O, LSE) moves on exactly once with the
/// message that carries it, none is overwritten, and all rest at the end in the local buffer of their owner;
/// - sends meet receives in equal order, with equal slices and wire types, per source, destination and
/// channel;
/// - one issue order over all channels exists that cannot deadlock, even when a back-end runs the groups of a
/// rank strictly one after another (as NCCL does on one stream);
/// - no slot is written while it is read, sent or landed in;
/// - every posted transfer is waited for.
///
/// Ranks are proved one by one (proof.hpp), shared out to the threads of the machine, and what they show is
/// added up: memory grows with the number of ranks and not with that of steps. Only where both ends of some
/// message are posted in different steps are all steps seen side by side; throws Error where these would take
/// gigabytes.
///
/// A large plan with a period (Plan::period) is proved on the ranks of one: the others do the same at the
/// same places, with other rank numbers, so what holds for them holds for all. That they do is compared for
/// all ranks and steps where these have at most a million entries; else for all steps of two other periods,
/// and for many ranks at three steps. Under a mask, pairs of shards that nobody computes are looked at for
/// all ranks.
///
/// Calls plan.step from several threads at once.
std::vector<std::string> violations(const Plan& plan, RankSubset subset = RankSubset::automatic);

/// Throws Error with the first violations when there are any.
void validate(const Plan& plan, RankSubset subset = RankSubset::automatic);

}  // namespace annulus::plan
