#pragma once

#include <csignal>
#include <ctime>
#include <thread>
#include <utility>

/// What handlers of several modules have in common.
namespace annulus {

/// Has `action` done on `signal`, and gives what was done before. A signal that is ignored stays ignored:
/// whoever started the process wants it so (nohup, the background of a shell); false then.
inline bool handle_unless_ignored(int signal, const struct sigaction& action, struct sigaction& before) {
  sigaction(signal, nullptr, &before);
  if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_IGN) return false;
  return sigaction(signal, &action, nullptr) == 0;
}

/// A thread that handles no signals: they go to the threads that know what to do with them.
template <class Body>
std::jthread thread_without_signals(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::jthread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

/// Ends the process by `signal`, from its own handler.
inline void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // it is blocked until the handler returns
}

/// Tells a second SIGTERM from the first. Launchers and batch systems may send one request twice, so what
/// comes within two seconds of the first is the same request. For handlers: touches nothing but itself.
class SecondTermination {
 public:
  /// Whether the SIGTERM that has just come is a second one.
  bool came() volatile {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const auto tenths = static_cast<std::sig_atomic_t>(now.tv_sec * 10 + now.tv_nsec / 100'000'000);
    if (first_ != 0) return tenths - first_ >= 20;
    first_ = tenths == 0 ? 1 : tenths;
    return false;
  }
  void reset() volatile { first_ = 0; }

 private:
  volatile std::sig_atomic_t first_ = 0;  // tenths of a second, of the machine's clock; 0: none yet
};

}  // namespace annulus
