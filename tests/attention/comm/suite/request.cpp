#include <gmock/gmock.h>

#include <utility>

#include "attention/comm/suite/suite.hpp"

namespace annulus::comm::suite {

namespace {

using testing::HasSubstr;

void inactive(Communicator&) {
  Request request;
  EXPECT_FALSE(request.active());
  request.wait();
  EXPECT_TRUE(request.test());
}

void moved(Communicator& comm) {
  const auto out = pattern(5, comm.rank(), 1);
  std::vector<std::int64_t> in(5);
  Request first = exchange_one(comm, send_of(out, next_of(comm)), receive_of(in, previous_of(comm)), 8);
  EXPECT_TRUE(first.active());
  Request second = std::move(first);
  EXPECT_FALSE(first.active());  // NOLINT(bugprone-use-after-move): what this case is about
  first.wait();
  EXPECT_TRUE(first.test());
  EXPECT_TRUE(second.active());
  Request& same = second;
  second = std::move(same);
  EXPECT_TRUE(second.active());
  second.wait();
  EXPECT_FALSE(second.active());
  EXPECT_EQ(in, pattern(5, previous_of(comm), 1));
}

void assignment_waits_for_the_old(Communicator& comm) {
  const auto out = pattern(20000, comm.rank(), 2);
  std::vector<std::int64_t> in(20000), again(20000);
  Request request = exchange_one(comm, send_of(out, next_of(comm)), receive_of(in, previous_of(comm)), 8);
  request = exchange_one(comm, send_of(out, next_of(comm)), receive_of(again, previous_of(comm)), 8);
  EXPECT_EQ(in, pattern(20000, previous_of(comm), 2));
  request.wait();
  EXPECT_EQ(again, in);
}

void destruction_waits(Communicator& comm) {
  const auto out = pattern(20000, comm.rank(), 3);
  std::vector<std::int64_t> in(20000);
  {
    const Request request =
        exchange_one(comm, send_of(out, next_of(comm)), receive_of(in, previous_of(comm)), 8);
  }
  EXPECT_EQ(in, pattern(20000, previous_of(comm), 3));
}

/// An error that destruction swallows comes back from the next call, once.
void swallowed_error_comes_back(Communicator& comm) {
  const std::vector<char> out(3, 'x');
  std::vector<char> in(8);
  { const Request request = exchange_one(comm, send_of(out, comm.rank()), receive_of(in, comm.rank()), 78); }
  char byte = 'a', other = 'b';
  const auto self = [&] { exchange_one(comm, {&byte, 1, comm.rank()}, {&other, 1, comm.rank()}, 79).wait(); };
  EXPECT_THAT(error_text(self), HasSubstr("channel 78"));
  self();
  EXPECT_EQ(other, 'a');
  comm.barrier();
}

/// A receive that nobody answers is given up when an exception unwinds the stack.
void unwinding_gives_up(Communicator& comm) {
  std::vector<char> in(100, 'i');
  EXPECT_THROW(
      {
        const Request request = receive_one(comm, receive_of(in, previous_of(comm)), 80);
        throw std::out_of_range("unrelated");
      },
      std::out_of_range);
  // The receive is gone: a message on its channel goes to the next one.
  comm.barrier();
  const std::vector<char> out(100, 'o');
  std::vector<char> later(100);
  exchange_one(comm, send_of(out, next_of(comm)), receive_of(later, previous_of(comm)), 80).wait();
  EXPECT_EQ(later, out);
  EXPECT_EQ(in, std::vector<char>(100, 'i'));
}

}  // namespace

std::vector<Case> request_cases() {
  return {{"Inactive", inactive},
          {"Moved", moved},
          {"AssignmentWaitsForTheOld", assignment_waits_for_the_old},
          {"DestructionWaits", destruction_waits},
          {"SwallowedErrorComesBack", swallowed_error_comes_back},
          {"UnwindingGivesUp", unwinding_gives_up}};
}

}  // namespace annulus::comm::suite
