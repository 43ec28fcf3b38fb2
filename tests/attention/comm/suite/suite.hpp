#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>

#include "support/error_text.hpp"

/// What every communicator must do, written once: each case runs on all ranks of a communicator of any size,
/// on any transport. The channels it uses are free again when it ends.
namespace annulus::comm::suite {

using test::error_text, test::mentions;

struct Case {
  std::string name;
  void (*run)(Communicator&);
};

std::vector<Case> exchange_cases();
std::vector<Case> request_cases();
std::vector<Case> collective_cases();
std::vector<Case> started_cases();  // collectives under way
std::vector<Case> split_cases();
std::vector<Case> background_cases();  // of another thread

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& part : {exchange_cases(), request_cases(), collective_cases(), started_cases(),
                           split_cases(), background_cases()})
    cases.insert(cases.end(), part.begin(), part.end());
  return cases;
}

inline Queue host_queue() {
  return Queue(Kokkos::DefaultHostExecutionSpace());
}

inline int next_of(const Communicator& comm) {
  return (comm.rank() + 1) % comm.size();
}
inline int previous_of(const Communicator& comm) {
  return (comm.rank() + comm.size() - 1) % comm.size();
}

template <class T>
Send send_of(const std::vector<T>& data, int peer) {
  return {data.data(), data.size() * sizeof(T), peer};
}
template <class T>
Receive receive_of(std::vector<T>& data, int peer) {
  return {data.data(), data.size() * sizeof(T), peer};
}
inline Request exchange_one(Communicator& comm, const Send& send, const Receive& receive, int channel = 0) {
  return comm.exchange(host_queue(), {&send, 1}, {&receive, 1}, channel);
}
inline Request send_one(Communicator& comm, const Send& send, int channel = 0) {
  return comm.exchange(host_queue(), {&send, 1}, {}, channel);
}
inline Request receive_one(Communicator& comm, const Receive& receive, int channel = 0) {
  return comm.exchange(host_queue(), {}, {&receive, 1}, channel);
}

/// The Error with which `body` on so many ranks of one node ends.
template <class Body>
std::string error_of_ranks(int ranks, const Body& body, const LoopbackOptions& options = {}) {
  return error_text([&] { run_loopback(Topology::uniform(ranks, ranks), body, options); });
}

/// Numbers that differ between any two (rank, tag).
inline std::vector<std::int64_t> pattern(std::size_t count, int rank, int tag) {
  std::vector<std::int64_t> data(count);
  for (std::size_t i = 0; i < count; ++i)
    data[i] = static_cast<std::int64_t>(i) * 1000003 + rank * std::int64_t{1000000007} +
              tag * std::int64_t{10000000019};
  return data;
}

}  // namespace annulus::comm::suite
