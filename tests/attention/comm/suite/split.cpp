#include <gmock/gmock.h>

#include <numeric>

#include "attention/comm/suite/suite.hpp"

namespace annulus::comm::suite {

namespace {

using testing::HasSubstr;

/// Ranks of the parent, gathered in the order of the child's ranks.
std::vector<int> members(Communicator& child, int rank_in_parent) {
  std::vector<int> all(static_cast<std::size_t>(child.size()));
  child.all_gather(host_queue(), &rank_in_parent, all.data(), sizeof rank_in_parent);
  return all;
}

void expect_same_nodes(const Communicator& child, const std::vector<int>& members, const Topology& parent) {
  ASSERT_EQ(child.size(), static_cast<int>(members.size()));
  for (int a = 0; a < child.size(); ++a)
    for (int b = 0; b < child.size(); ++b)
      EXPECT_EQ(child.topology().same_node(a, b),
                parent.same_node(members[static_cast<std::size_t>(a)], members[static_cast<std::size_t>(b)]));
}

/// Data-parallel beside context-parallel groups: rank = replica · cp + place. Messages on the same channel of
/// the parent and of both groups are under way together and do not mix.
void data_beside_context_parallel(Communicator& comm) {
  for (int cp = 1; cp <= comm.size(); ++cp) {
    if (comm.size() % cp != 0) continue;
    const int replica = comm.rank() / cp, place = comm.rank() % cp;
    const auto context = comm.split(replica, comm.rank()), data = comm.split(place, comm.rank());
    ASSERT_EQ(context->size(), cp);
    EXPECT_EQ(context->rank(), place);
    ASSERT_EQ(data->size(), comm.size() / cp);
    EXPECT_EQ(data->rank(), replica);
    std::vector<int> in_context(static_cast<std::size_t>(cp)),
        in_data(static_cast<std::size_t>(comm.size() / cp));
    std::iota(in_context.begin(), in_context.end(), replica * cp);
    for (std::size_t i = 0; i < in_data.size(); ++i) in_data[i] = static_cast<int>(i) * cp + place;
    EXPECT_EQ(members(*context, comm.rank()), in_context);
    EXPECT_EQ(members(*data, comm.rank()), in_data);
    expect_same_nodes(*context, in_context, comm.topology());
    expect_same_nodes(*data, in_data, comm.topology());

    std::vector<Request> requests;
    std::vector<std::vector<std::int64_t>> out, in(3, std::vector<std::int64_t>(100));
    Communicator* const all[] = {&comm, context.get(), data.get()};
    for (int c = 0; c < 3; ++c) out.push_back(pattern(100, all[c]->rank(), c));
    for (std::size_t c = 0; c < 3; ++c)
      requests.push_back(exchange_one(*all[c], send_of(out[c], next_of(*all[c])),
                                      receive_of(in[c], previous_of(*all[c])), 9));
    for (std::size_t c = 3; c-- > 0;) requests[c].wait();
    for (int c = 0; c < 3; ++c)
      EXPECT_EQ(in[static_cast<std::size_t>(c)], pattern(100, previous_of(*all[c]), c));
    EXPECT_EQ(data->all_reduce_value(1 << place, ReduceOp::sum), data->size() << place);
  }
}

void keys_order_the_ranks(Communicator& comm) {
  const auto reversed = comm.split(0, -comm.rank());
  ASSERT_EQ(reversed->size(), comm.size());
  EXPECT_EQ(reversed->rank(), comm.size() - 1 - comm.rank());
  std::vector<int> all(static_cast<std::size_t>(comm.size()));
  for (int r = 0; r < comm.size(); ++r) all[static_cast<std::size_t>(r)] = comm.size() - 1 - r;
  EXPECT_EQ(members(*reversed, comm.rank()), all);
  expect_same_nodes(*reversed, all, comm.topology());
  const auto ties = comm.split(3, 0);  // equal keys: the order of the parent
  EXPECT_EQ(ties->rank(), comm.rank());
}

void groups_of_groups(Communicator& comm) {
  const auto half = comm.split(comm.rank() % 2, comm.rank());
  const auto one = half->split(half->rank(), 0);
  EXPECT_EQ(one->size(), 1);
  EXPECT_EQ(one->topology().nodes(), 1);
  const auto again = half->split(5, half->rank());
  EXPECT_EQ(again->size(), half->size());
  EXPECT_EQ(again->all_reduce_value(comm.rank() % 2, ReduceOp::max), comm.rank() % 2);
}

void outlives_the_parent(Communicator& comm) {
  auto parent = comm.split(0, comm.rank());
  const auto child = parent->split(0, comm.rank());
  parent.reset();
  EXPECT_EQ(child->all_reduce_value(1, ReduceOp::sum), comm.size());
}

/// All ranks hear of one rank's mistake, and can go on.
void bad_colour(Communicator& comm) {
  const std::string text = error_text([&] { comm.split(comm.rank() == comm.size() - 1 ? -2 : 0, 0); });
  EXPECT_THAT(text, HasSubstr("rank " + std::to_string(comm.size() - 1) + " has colour -2"));
  EXPECT_EQ(comm.all_reduce_value(1, ReduceOp::sum), comm.size());
}

void nodes_torn_apart(Communicator& comm) {
  const Topology& nodes = comm.topology();
  // Local ranks first, then nodes: 0, 2, 1, 3 for two nodes of two.
  const int key = nodes.local_rank(comm.rank()) * nodes.nodes() + nodes.node(comm.rank());
  const bool torn = nodes.nodes() > 1 && nodes.ranks_on(0) > 1;
  if (!torn) {
    EXPECT_EQ(comm.split(0, key)->size(), comm.size());
    return;
  }
  EXPECT_THAT(error_text([&] { comm.split(0, key); }), HasSubstr("separate ranks of node 0"));
}

}  // namespace

std::vector<Case> split_cases() {
  return {{"DataBesideContextParallel", data_beside_context_parallel},
          {"KeysOrderTheRanks", keys_order_the_ranks},
          {"GroupsOfGroups", groups_of_groups},
          {"OutlivesTheParent", outlives_the_parent},
          {"BadColour", bad_colour},
          {"NodesTornApart", nodes_torn_apart}};
}

}  // namespace annulus::comm::suite
