#include <annulus/train/stop_signal.hpp>

#include <array>
#include <csignal>
#include <mutex>

namespace annulus::train {

namespace {

constexpr std::array stop_signals{SIGTERM, SIGUSR1, SIGINT};

// Handlers may touch nothing but this.
volatile std::sig_atomic_t first_signal = 0;
std::array<struct sigaction, stop_signals.size()> previous{};
std::mutex mutex;
int users = 0;  // ranks that are threads of one process share the handlers

extern "C" void remember(int signal) {
  if (signal == SIGINT && first_signal == SIGINT) {  // somebody at the keyboard does not want to wait
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  if (first_signal == 0) first_signal = signal;
}

}  // namespace

StopSignal::StopSignal() {
  const std::scoped_lock lock(mutex);
  if (users++ > 0) return;
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < stop_signals.size(); ++i) sigaction(stop_signals[i], &action, &previous[i]);
}

StopSignal::~StopSignal() {
  const std::scoped_lock lock(mutex);
  if (--users > 0) return;
  for (std::size_t i = 0; i < stop_signals.size(); ++i) sigaction(stop_signals[i], &previous[i], nullptr);
}

int StopSignal::received() const {
  return first_signal;
}

const char* signal_name(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGINT:
      return "SIGINT";
    default:
      return "a signal";
  }
}

}  // namespace annulus::train
