#include <annulus/attention/comm/communicator.hpp>

#include <exception>

#include "attention/comm/reductions/stages.hpp"

namespace annulus::comm {

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    drop();
    state_ = std::move(other.state_);
  }
  return *this;
}

Request::~Request() {
  drop();
}

void Request::drop() noexcept {
  if (!state_) return;
  if (std::uncaught_exceptions() > 0) return state_->give_up();
  try {
    state_->finish();
  } catch (const std::exception& error) {
    state_->keep(error.what());
  }
}

void Request::wait() {
  // Taken out first: a request whose wait has thrown is inactive.
  if (const auto state = std::move(state_)) state->wait();
}

bool Request::test() {
  if (!state_) return true;
  advance_stages();  // whoever asks again and again waits
  auto state = std::move(state_);
  if (state->test()) return true;
  state_ = std::move(state);
  return false;
}

}  // namespace annulus::comm
