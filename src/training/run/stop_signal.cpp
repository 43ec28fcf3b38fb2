#include "training/run/stop_signal.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include "base/system/signals.hpp"

namespace annulus::training {

namespace {

struct StopCause {
  int signal;
  const char* name;
};
// SIGHUP: the terminal is gone. SIGXCPU: the soft limit of processor time is reached, a hard one may follow.
constexpr std::array stop_causes{StopCause{SIGTERM, "SIGTERM"}, StopCause{SIGUSR1, "SIGUSR1"},
                                 StopCause{SIGINT, "SIGINT"}, StopCause{SIGHUP, "SIGHUP"},
                                 StopCause{SIGXCPU, "SIGXCPU"}};

// Handlers may touch nothing but this.
volatile std::sig_atomic_t first_signal = 0;
SecondTermination second_termination;
std::array<struct sigaction, stop_causes.size()> previous{};
std::mutex mutex;
int users = 0;  // ranks that are threads of one process share the handlers

extern "C" void remember(int signal) {
  // Whoever asks again does not want to wait, or the program is stuck.
  const bool again =
      (signal == SIGINT && first_signal == SIGINT) || (signal == SIGTERM && second_termination.came());
  if (again) end_by(signal);
  if (first_signal == 0) first_signal = signal;
}

}  // namespace

StopSignal::StopSignal() {
  const std::scoped_lock lock(mutex);
  if (users++ > 0) return;
  first_signal = 0;
  second_termination.reset();
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < stop_causes.size(); ++i) {
    // Job scripts ignore SIGUSR1 until the program listens.
    if (const int signal = stop_causes[i].signal; signal == SIGUSR1)
      sigaction(signal, &action, &previous[i]);
    else
      handle_unless_ignored(signal, action, previous[i]);
  }
}

StopSignal::~StopSignal() {
  const std::scoped_lock lock(mutex);
  if (--users > 0) return;
  for (std::size_t i = 0; i < stop_causes.size(); ++i)
    sigaction(stop_causes[i].signal, &previous[i], nullptr);
}

int StopSignal::received() const {
  return first_signal;
}

std::string stop_cause(int signal) {
  const char* const file = std::getenv("ANNULUS_STOP_CAUSE");
  std::string told;
  if (signal == SIGUSR1 && file != nullptr) std::getline(std::ifstream(file), told);
  for (const StopCause& cause : stop_causes)
    if (told == cause.name) return told;
  const auto* const found = std::ranges::find(stop_causes, signal, &StopCause::signal);
  return found == stop_causes.end() ? "a signal" : found->name;
}

}  // namespace annulus::training
