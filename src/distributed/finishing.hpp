#pragma once

#include "distributed/program.hpp"

/// Who is the last to touch a row of the caller's O. A local call that is can write its result as the caller
/// wants it, in 16 bits say, and need not leave it in fp32.
namespace annulus::distributed {

/// Sets LocalCall::finishes of all calls, and Program::unfinished. A call finishes where nothing behind it
/// computes, merges, receives or sends any of its rows of O.
void mark_finishing(Program& program);

/// Throws Error naming schedule, rank and step where a row of O is touched behind the call that finishes it,
/// or is neither finished nor listed as unfinished. Looks at the program from its beginning, where
/// mark_finishing does so from its end.
void check_finishing(const Program& program);

}  // namespace annulus::distributed
