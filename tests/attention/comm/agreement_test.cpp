#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include <annulus/base/version.hpp>

#include "attention/comm/agreement.hpp"
#include "attention/comm/reductions/difference.hpp"
#include "support/rank_messages.hpp"

namespace annulus::comm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* remedy = "give every rank the same configuration";

/// What each of the ranks is told when it goes by the facts that `of_rank` gives it.
std::vector<std::string> messages(int ranks, const std::function<Facts(int)>& of_rank) {
  return test::messages_of_ranks(Topology::uniform(ranks, ranks), [&](Communicator& communicator) {
    require_agreement(communicator, of_rank(communicator.rank()));
  });
}

Facts facts(double rate, int steps = 5) {
  Facts facts = program_facts();
  facts.add("train.lr", rate, remedy);
  facts.add("train.steps", steps, remedy);
  return facts;
}

TEST(Agreement, RanksThatAgreeGoOn) {
  EXPECT_THAT(messages(3, [](int) { return facts(0.001); }), Each(std::string("no error")));
  require_agreement(*make_null(), facts(0.001));
}

TEST(Agreement, ADifferenceNamesKeyValuesAndRanksOnAllRanks) {
  EXPECT_THAT(
      messages(2, [](int rank) { return facts(rank == 1 ? 0.01 : 0.001); }),
      Each(std::string("ranks disagree about train.lr: 0.01 on rank 1, 0.001 on rank 0; give every rank "
                       "the same configuration")));
  EXPECT_THAT(messages(8, [](int rank) { return facts(rank == 1 ? 0.01 : 0.001); }),
              Each(HasSubstr("0.01 on rank 1, 0.001 on ranks 0, 2-7;")));
}

TEST(Agreement, AStaleNodeOfManyIsNamedByItsProgram) {
  const auto texts = messages(8, [](int rank) {
    Facts mine;
    const bool stale = rank == 4 || rank == 5;
    mine.add("the program's version", version(), "start the same build of the program on every rank");
    mine.add("the program's git hash", stale ? "0123abc" : "4567def",
             "start the same build of the program on every rank");
    mine.add("train.lr", 0.1, remedy);
    if (!stale) mine.add("train.new_key", 3, remedy);  // which the older one does not know
    return mine;
  });
  EXPECT_THAT(texts, Each(std::string(
                         "ranks disagree about the program's git hash: 0123abc on ranks 4, 5, 4567def on "
                         "ranks 0-3, 6, 7; start the same build of the program on every rank (they "
                         "disagree about train.new_key too)")));
}

TEST(Agreement, TheFirstKeyIsToldAndTheOthersAreNamed) {
  EXPECT_THAT(messages(3, [](int rank) { return facts(rank == 0 ? 0.1 : 0.2, 5 + rank); }),
              Each(AllOf(HasSubstr("about train.lr: 0.1 on rank 0, 0.2 on ranks 1, 2;"),
                         HasSubstr("(they disagree about train.steps too)"))));
}

TEST(Agreement, AKeyThatSomeRankLacksIsUnknownThere) {
  EXPECT_THAT(messages(3,
                       [](int rank) {
                         Facts mine;
                         if (rank != 0) mine.add("train.lr", 0.1, remedy);
                         return mine;
                       }),
              Each(HasSubstr("about train.lr: unknown on rank 0, 0.1 on ranks 1, 2; give every rank")));
}

TEST(Agreement, LongValuesAreComparedWholeAndToldShort) {
  const auto texts = messages(2, [](int rank) {
    Facts mine;
    mine.add("attention.mask", std::string(100000, 'x') + std::to_string(rank), remedy);
    return mine;
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("about attention.mask: xxx"), HasSubstr("(100001 characters"))));
  EXPECT_LT(texts[0].size(), 600u);
}

TEST(Agreement, OfManyValuesAFewAreTold) {
  EXPECT_THAT(messages(12, [](int rank) { return facts(rank); }),
              Each(AllOf(HasSubstr("and 9 other values; "), Not(HasSubstr("on rank 0")))));
}

TEST(Agreement, OfManyMachinesThoseOfTheFewAreNamed) {
  std::vector<RankFacts> ranks;
  for (int rank = 0; rank < 32; ++rank) {
    Facts mine;
    mine.add("the program's git hash", rank / 8 == 1 ? "0123abc" : "4567def", remedy);
    ranks.push_back({"node" + std::to_string(rank / 4), mine.all()});
  }
  EXPECT_EQ(
      difference_text(ranks),
      "ranks disagree about the program's git hash: 0123abc on ranks 8-15 (node2, node3), 4567def on ranks "
      "0-7, 16-31; give every rank the same configuration");
}

TEST(Agreement, TheProblemOfOneRankIsThatOfAll) {
  EXPECT_THAT(test::messages_of_ranks(Topology::uniform(3, 3),
                                      [](Communicator& communicator) {
                                        throw_together(communicator,
                                                       communicator.rank() == 2 ? "no such file" : "");
                                      }),
              Each(std::string("no such file (found on rank 2)")));
}

}  // namespace
}  // namespace annulus::comm
