#pragma once

namespace annulus::attention::portable {

/// A team owns `rows` rows of one side (queries in the forward pass and for dQ, keys for dK and dV) and walks
/// over the other side in tiles of as many rows. Operands come through a stage in scratch, in parts of
/// `depth` columns or of as many rows as fit; the scores of a tile lie in scratch as well; results stay in
/// registers.
inline constexpr int rows = 64, depth = 32;
/// Threads side by side in a team's tile.
inline constexpr int across = 16;

/// Rows of the stage are 36 floats apart: eight neighbouring rows' 16 bytes lie in different banks.
inline constexpr int stage_stride = depth + 4;
inline constexpr int stage_floats = 2 * rows * stage_stride;
/// 16 neighbouring rows of two neighbouring columns lie in different banks.
inline constexpr int score_stride = rows + 16;

/// Rows of the stage that `width` columns leave.
template <int width>
inline constexpr int staged_rows = 4096 / width < rows ? 4096 / width : rows;

/// Threads of a team. Each thread of the forward pass has up to 8 × 8 sums of O and 4 × 8 scores. The
/// backward pass has twice the sums and scores, hence more threads.
template <int width>
inline constexpr int forward_threads = width > 128 ? 256 : 128;
inline constexpr int backward_threads = 256;

/// Teams that share a multiprocessor: one waits for memory while another one computes. Registers bound them;
/// rows of more than 128 columns leave none for a second team.
template <int width>
inline constexpr int forward_teams = width > 128 ? 1 : 3;
template <int width>
inline constexpr int backward_teams = width > 128 ? 1 : 2;

}  // namespace annulus::attention::portable
