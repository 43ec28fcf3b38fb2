#include "attention/comm/reductions/stages.hpp"

#include <atomic>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

namespace annulus::comm {

namespace {

/// Shared by the request and the list of the thread that started it. Used by one of them at a time.
class StageSequence {
 public:
  using Post = std::function<Request(const CollectiveStage&, int number)>;

  StageSequence(std::vector<CollectiveStage> stages, Post post)
      : stages_(std::move(stages)), post_(std::move(post)) {
    current_ = post_(stages_[0], 0);
  }

  void wait() {
    const ExclusiveUse use(*this);
    do {
      rethrow();
      current_.wait();
    } while (post_next());
  }
  bool test() {
    const ExclusiveUse use(*this);
    rethrow();
    while (current_.test())
      if (!post_next()) return true;
    return false;
  }
  /// False when every stage is posted, or none will be any more.
  bool advance() noexcept {
    if (busy_.exchange(true)) return true;
    try {
      while (failure_ == nullptr && !all_posted() && current_.test()) post_next();
    } catch (...) {
      failure_ = std::current_exception();
    }
    const bool goes_on = failure_ == nullptr && !all_posted();
    busy_ = false;
    return goes_on;
  }
  /// No further stage is posted.
  void end() noexcept {
    const ExclusiveUse use(*this);
    posted_ = stages_.size();
    current_ = {};
  }

 private:
  /// Keeps other threads out. The thread itself comes back only through advance(), which then does nothing.
  class ExclusiveUse {
   public:
    explicit ExclusiveUse(StageSequence& of) : of_(of) {
      while (of_.busy_.exchange(true)) std::this_thread::yield();
    }
    ~ExclusiveUse() { of_.busy_ = false; }
    ExclusiveUse(const ExclusiveUse&) = delete;
    ExclusiveUse& operator=(const ExclusiveUse&) = delete;

   private:
    StageSequence& of_;
  };

  bool all_posted() const { return posted_ == stages_.size(); }
  bool post_next() {
    if (all_posted()) return false;
    const std::size_t number = posted_++;
    current_ = post_(stages_[number], static_cast<int>(number));
    return true;
  }
  void rethrow() {
    if (failure_) std::rethrow_exception(failure_);
  }

  std::vector<CollectiveStage> stages_;
  Post post_;
  std::size_t posted_ = 1;
  Request current_;
  std::exception_ptr failure_;
  std::atomic<bool> busy_ = false;
};

class StagesState final : public Request::State {
 public:
  explicit StagesState(std::shared_ptr<StageSequence> sequence) : sequence_(std::move(sequence)) {}
  ~StagesState() override { sequence_->end(); }

  void wait() override { sequence_->wait(); }
  bool test() override { return sequence_->test(); }

 private:
  std::shared_ptr<StageSequence> sequence_;
};

/// This thread's sequences of stages. What another thread has waited for, or dropped, leaves by itself.
thread_local std::vector<std::weak_ptr<StageSequence>> under_way;
thread_local bool advancing = false;

}  // namespace

Request post_in_turn(std::vector<CollectiveStage> stages,
                     std::function<Request(const CollectiveStage&, int number)> post) {
  const auto sequence = std::make_shared<StageSequence>(std::move(stages), std::move(post));
  if (sequence->advance()) under_way.push_back(sequence);  // a stage may have no messages on this rank
  return Request(std::make_unique<StagesState>(sequence));
}

bool stages_under_way() {
  return !under_way.empty() && !advancing;
}

void advance_stages() {
  if (!stages_under_way()) return;
  advancing = true;  // posting looks at requests, which come here
  std::erase_if(under_way, [](const std::weak_ptr<StageSequence>& entry) {
    const auto sequence = entry.lock();
    return sequence == nullptr || !sequence->advance();
  });
  advancing = false;
}

}  // namespace annulus::comm
