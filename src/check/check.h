// The invariants of a filesystem image (design section 10), as pure functions. fsck, the scrubber,
// the simulator and the tests call these same functions.
//
// What they cannot see: bytes (nothing is checksummed), a lost entry together with its inode, two
// records whose values were exchanged consistently, numbers that were reserved but never used.
#pragma once

#include "check/finding.h"
#include "check/image.h"

namespace etcfs::check {

// All of the below, with the image's own findings first. Empty = clean.
Findings check_all(const Image& image);

void check_super(const Image& image, Findings& out);
// Entries, inodes, link counts, parents, reachability, cookies, birth.
void check_tree(const Image& image, Findings& out);
// Extents of each file against its size and against the form in which they are stored.
void check_files(const Image& image, Findings& out);
// Extents, freed keys and free maps against each other and the device.
void check_space(const Image& image, Findings& out);
// Locks, wants, holds, advisory locks, beats, arenas: epochs that exist, and I3.
void check_holders(const Image& image, Findings& out);

}  // namespace etcfs::check
