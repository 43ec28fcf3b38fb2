#pragma once

namespace annulus::eval {

/// annulus-eval: what a trained model does with text, and how well. Gives the exit status.
int run_program(int argc, char** argv);

}  // namespace annulus::eval
