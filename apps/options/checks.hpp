#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <annulus/base/dtype.hpp>

/// Checks of options that several programs have. They throw Error naming the option.
namespace annulus::options {

/// The largest number of tokens, rows, heads and the like; more would overflow when multiplied.
inline constexpr std::int64_t most_of_option = std::int64_t{1} << 31;

/// Throws Error unless the value is from 1 to most_of_option.
void require_positive(std::string_view option, std::int64_t value);

/// An array of `rows` × `columns` elements, which `options` ("--tokens and --hidden") ask for: its bytes are
/// counted in 64 bits, its sizes by BLAS in 32.
void check_matrix(std::string_view options, std::int64_t rows, std::int64_t columns);

/// --heads and --kv-heads, which may be 0 for as many as --heads. Returns the number of kv heads.
int checked_kv_heads(int heads, int kv_heads);

/// --dtype: f32, bf16 or f16.
DType parse_storage(std::string_view name);

/// The name of a schedule with what --placement says: "hybrid:HxC" gets ":head-first" or ":context-first" at
/// its end. An empty placement leaves it as it is, and other schedules stay as they are. Throws Error when
/// the name has another placement already, and when there is no such placement.
std::string with_placement(const std::string& schedule, std::string_view placement);

/// --ranks-per-node of a job of `ranks`; 0 stands for what the machine says.
void check_ranks_per_node(int ranks_per_node, int ranks);

/// The schedule takes a placement.
bool has_placement(std::string_view schedule);

}  // namespace annulus::options
