#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/training/data/tokenizer.hpp>

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
    const std::uint64_t size = text.size();
    send(socket, std::as_bytes(std::span(&size, 1)));
    send(socket, std::as_bytes(std::span(text)));
    std::array<std::uint64_t, 2> answer{};  // failed, and how many ids or bytes of a message follow
    receive(socket, std::as_writable_bytes(std::span(answer)));
    // Ids are seldom more than bytes; Unicode's compatibility forms make a text eleven times as long at most.
    require(answer[1] <= 16 * size + 1024,
            "the process that has the tokenizer '{}' answers with {} ids for {} bytes", identity_.name,
            answer[1], size);
    if (answer[0] != 0) {
      std::string message(answer[1], '\0');
      receive(socket, std::as_writable_bytes(std::span(message)));
      fail("{}", message);
    }
    const std::size_t before = ids.size();
    ids.resize(before + answer[1]);
    receive(socket, std::as_writable_bytes(std::span(ids).subspan(before)));
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

  [[noreturn]] void lost(ssize_t count) const {
    fail("the process that has the tokenizer '{}' has ended ({}): see what it says, and pack again",
         identity_.name, count < 0 ? std::generic_category().message(errno) : "it sends nothing more");
  }
  void send(const Socket& to, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::send(to.descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0 && errno != EINTR) lost(count);
      if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }
  void receive(const Socket& from, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::recv(from.descriptor, bytes.data(), bytes.size(), 0);
      if (count == 0 || (count < 0 && errno != EINTR)) lost(count);
      if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

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
