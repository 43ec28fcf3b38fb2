#include "comm/mpi_request.hpp"

#include <algorithm>

namespace annulus::comm {

namespace {

/// How long unwinding waits for exchanges that are given up, all together.
constexpr auto give_up_after = std::chrono::seconds(2);

}  // namespace

MpiState::~MpiState() {
  give_up();
}

template <class Start>
void MpiState::in_pieces(std::size_t bytes, std::size_t piece_bytes, Piece piece, bool receives,
                         const Start& start) {
  for (std::size_t offset = 0;; offset += piece_bytes) {
    const int count = static_cast<int>(std::min(bytes - offset, piece_bytes));
    piece.expected = receives ? count : -1;
    // Room first: a request that has started must not be lost.
    pieces_.push_back(piece);
    requests_.push_back(MPI_REQUEST_NULL);
    start(offset, count, &requests_.back());
    if (static_cast<std::size_t>(count) < piece_bytes) return;  // the short last piece
  }
}

void MpiState::receive(const Receive& message, int tag, std::size_t piece_bytes) {
  in_pieces(message.bytes, piece_bytes, {message.peer, tag, 0}, true,
            [&](std::size_t offset, int count, MPI_Request* request) {
              ANNULUS_MPI(MPI_Irecv, static_cast<std::byte*>(message.data) + offset, count, MPI_BYTE,
                          message.peer, tag, link_->handle, request);
            });
}

void MpiState::send(const Send& message, int tag, std::size_t piece_bytes) {
  in_pieces(message.bytes, piece_bytes, {message.peer, tag, 0}, false,
            [&](std::size_t offset, int count, MPI_Request* request) {
              ANNULUS_MPI(MPI_Isend, static_cast<const std::byte*>(message.data) + offset, count, MPI_BYTE,
                          message.peer, tag, link_->handle, request);
            });
}

void MpiState::wait() {
  statuses_.resize(requests_.size());
  check(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), statuses_.data()), "MPI_Waitall");
}

bool MpiState::test() {
  statuses_.resize(requests_.size());
  int done = 0;
  const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
  if (code == MPI_SUCCESS && done == 0) return false;
  check(code, "MPI_Testall");
  return true;
}

void MpiState::check(int code, const char* call) const {
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) mpi_check(code, call);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (code == MPI_ERR_IN_STATUS) {
      const int error = statuses_[i].MPI_ERROR;
      int error_class = MPI_SUCCESS;
      if (error != MPI_SUCCESS && error != MPI_ERR_PENDING) MPI_Error_class(error, &error_class);
      if (error_class == MPI_ERR_TRUNCATE) size_error(piece, "more");
      if (error_class != MPI_SUCCESS) mpi_check(error, call);
      if (error == MPI_ERR_PENDING) continue;
    }
    if (piece.expected < 0) continue;
    int received = 0;
    ANNULUS_MPI(MPI_Get_count, &statuses_[i], MPI_BYTE, &received);
    if (received != piece.expected) size_error(piece, std::to_string(received));
  }
  // Every status that was looked at is fine, yet MPI reports an error: one of those still pending.
  if (code != MPI_SUCCESS) mpi_check(code, call);
}

void MpiState::size_error(const Piece& piece, const std::string& got) const {
  int rank = 0;
  MPI_Comm_rank(link_->handle, &rank);
  fail(
      "rank {} expects {} bytes from rank {} on channel {}, which sends {}: both sides must agree on the "
      "size",
      rank, piece.expected, piece.peer, piece.tag, got);
}

void MpiState::drop() noexcept {
  if (std::uncaught_exceptions() > 0) return;  // the destructor gives up
  try {
    wait();
  } catch (const std::exception& error) {
    link_->swallowed = error.what();
  }
}

void MpiState::give_up() noexcept {
  // Normally all requests are null here. Otherwise an exception is on its way: peers may never answer, so
  // receives are cancelled, and sends (which MPI cannot cancel) get a moment to complete before they are left
  // to MPI.
  int finalized = 0;
  MPI_Finalized(&finalized);
  const auto pending = [&] {
    return std::any_of(requests_.begin(), requests_.end(),
                       [](MPI_Request r) { return r != MPI_REQUEST_NULL; });
  };
  if (finalized || !pending()) return;
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != MPI_REQUEST_NULL && pieces_[i].expected >= 0) MPI_Cancel(&requests_[i]);
  const auto now = std::chrono::steady_clock::now();
  if (link_->give_up_at == std::chrono::steady_clock::time_point{}) link_->give_up_at = now + give_up_after;
  do {
    for (MPI_Request& request : requests_) {
      int done = 0;
      if (request != MPI_REQUEST_NULL) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
    if (!pending()) return;
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < link_->give_up_at);
  for (MPI_Request& request : requests_)
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
}

}  // namespace annulus::comm
