#include <iostream>

#include "ctl/commands.h"

int main(int argc, char** argv) { return etcfs::ctl::run(argc, argv, std::cout, std::cerr); }
