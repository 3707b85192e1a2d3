package engine

import (
	"fmt"
	"strconv"
	"strings"
)

// release is a vLLM release line, 0.33.x as 33. Releases of a later major are later than any.
type release int

// Behaviours that changed between releases. Each names the first release line that has it.
const (
	sinceLease      release = 22 // P's lease and heartbeats; before, one timeout for both sides
	sinceExpiry     release = 26 // remote_blocks_expiry_time; handshake frame of three
	sinceMode       release = 28 // transfer_mode
	sinceRanks      release = 29 // dcp_size, pp_size
	sinceOneFailure release = 30 // failed receives reported per request: recompute always hangs
	sinceCached     release = 31 // remote_prefill_cached_tokens; the reaper looks at all leases; failed handshakes count
	sinceCleanup    release = 32 // broken peers are cleaned up; four config keys are gone
	sinceGeneration release = 33 // remote_registration_generation
)

// connectorVersions is NIXL_CONNECTOR_VERSION per release line; it is part of the handshake.
var connectorVersions = map[release]int{
	21: 3, 22: 4, 23: 4, 24: 4, 25: 4, 26: 5, 27: 5, 28: 7, 29: 9, 30: 11, 31: 13, 32: 14, 33: 15,
}

// parseRelease reads a vLLM version such as "0.33.0" or "0.33".
func parseRelease(version string) (release, error) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return 0, fmt.Errorf("parse vllm version %q: want major.minor", version)
	}
	major, err1 := strconv.ParseUint(parts[0], 10, 16)
	minor, err2 := strconv.ParseUint(parts[1], 10, 16)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("parse vllm version %q: want major.minor", version)
	}
	r := release(major)*1000 + release(minor)
	if r < 21 {
		return 0, fmt.Errorf("vllm version %q has no bidirectional transfer: want 0.21 or later", version)
	}
	return r, nil
}

func (r release) has(since release) bool { return r >= since }
