#include <array>
#include <condition_variable>
#include <mutex>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/training/data/tokenizer.hpp>

#include "serving_process.hpp"

namespace annulus::data {

namespace {

class PipedTokenizer final : public Tokenizer {
 public:
  PipedTokenizer(TokenizerIdentity identity, std::string model, std::vector<int> sockets)
      : identity_(std::move(identity)),
        model_(std::move(model)),
        processes_(static_cast<int>(sockets.size())),
        free_(std::move(sockets)) {}

  int threads() const override { return processes_; }

  const TokenizerIdentity& identity() const override { return identity_; }

  std::span<const std::uint8_t> model() const override {
    return {reinterpret_cast<const std::uint8_t*>(model_.data()), model_.size()};
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    const Socket socket(*this);
    const ServingProcess process(socket.descriptor,
                                 "the process that has the tokenizer '" + identity_.name + "'");
    const std::uint64_t size = text.size();
    process.send(std::span(&size, 1));
    process.send(std::span(text));
    std::array<std::uint64_t, 2> answer{};  // failed, and how many ids or bytes of a message follow
    process.receive(std::span(answer));
    // Ids are seldom more than bytes; Unicode's compatibility forms make a text eleven times as long at most.
    require(answer[1] <= 16 * size + 1024,
            "the process that has the tokenizer '{}' answers with {} ids for {} bytes", identity_.name,
            answer[1], size);
    if (answer[0] != 0) {
      std::string message(answer[1], '\0');
      process.receive(std::span(message));
      fail("{}", message);
    }
    const std::size_t before = ids.size();
    ids.resize(before + answer[1]);
    process.receive(std::span(ids).subspan(before));
  }

  std::string decode(std::span<const std::int32_t>) const override {
    fail("ids of the tokenizer '{}' are decoded by the program that made them", identity_.name);
  }

 private:
  /// A socket that this thread alone uses.
  class Socket {
   public:
    explicit Socket(const PipedTokenizer& of) : of_(of) {
      std::unique_lock lock(of.mutex_);
      of.returned_.wait(lock, [&] { return !of.free_.empty(); });
      descriptor = of.free_.back();
      of.free_.pop_back();
    }
    ~Socket() {
      {
        const std::lock_guard lock(of_.mutex_);
        of_.free_.push_back(descriptor);
      }
      of_.returned_.notify_one();
    }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;

    int descriptor = -1;

   private:
    const PipedTokenizer& of_;
  };

  TokenizerIdentity identity_;
  std::string model_;
  int processes_;
  mutable std::mutex mutex_;
  mutable std::condition_variable returned_;
  mutable std::vector<int> free_;  // sockets that no thread uses
};

}  // namespace

std::unique_ptr<const Tokenizer> make_piped_tokenizer(TokenizerIdentity identity, std::string model,
                                                      std::vector<int> sockets) {
  require(!sockets.empty(), "the tokenizer '{}' has no process", identity.name);
  return std::make_unique<PipedTokenizer>(std::move(identity), std::move(model), std::move(sockets));
}

}  // namespace annulus::data
