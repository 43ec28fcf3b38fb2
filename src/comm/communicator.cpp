#include <annulus/comm/communicator.hpp>

#include "comm/stages.hpp"

namespace annulus::comm {

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    if (state_) state_->drop();
    state_ = std::move(other.state_);
  }
  return *this;
}

Request::~Request() {
  if (state_) state_->drop();
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
