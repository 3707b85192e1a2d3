package doctor

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"
)

// HostFacts is what this machine has for fast transfers. It says something about the engines only if they run here.
type HostFacts struct {
	Devices    []string          // of /sys/class/infiniband
	Active     []string          // those with a port that is up
	Transports []string          // of ucx_info -d; nil if it is not installed
	EFA        int               // providers that fi_info -p efa lists; -1 if it is not installed
	PeerMemory bool              // nvidia_peermem is loaded
	NVIDIA     bool              // a GPU driver of NVIDIA is loaded
	Env        map[string]string // UCX_*, FI_*, NIXL_* and VLLM_NIXL_* of this process
	Missing    []string          // tools that are not installed: no reason to complain
}

// Host is where HostFacts come from.
type Host struct {
	Root fs.FS // the root file system
	Env  []string
	// Run runs a tool and returns what it prints; ok is false if it is not installed.
	Run func(ctx context.Context, name string, args ...string) (out []byte, ok bool)
}

// ThisHost is the machine that doctor runs on.
func ThisHost() Host {
	return Host{Root: os.DirFS("/"), Env: os.Environ(), Run: func(ctx context.Context, name string, args ...string) ([]byte, bool) {
		tool, err := exec.LookPath(name)
		if err != nil {
			return nil, false
		}
		ctx, cancel := context.WithTimeout(ctx, toolPatience)
		defer cancel()
		out, _ := exec.CommandContext(ctx, tool, args...).Output() // a tool that fails prints nothing that counts
		return out, true
	}}
}

// toolPatience bounds a tool that looks at devices.
const toolPatience = 10 * time.Second

// Look asks the machine. What is not there is left out.
func (h Host) Look(ctx context.Context) *HostFacts {
	f := &HostFacts{EFA: -1, Env: map[string]string{}}
	for _, line := range h.Env {
		name, value, _ := strings.Cut(line, "=")
		if transportVariable(name) {
			f.Env[name] = value
		}
	}
	devices, _ := fs.ReadDir(h.Root, "sys/class/infiniband") // none if there is no such directory
	for _, d := range devices {
		f.Devices = append(f.Devices, d.Name())
		states, _ := fs.Glob(h.Root, path.Join("sys/class/infiniband", d.Name(), "ports/*/state")) // the pattern is good
		for _, s := range states {
			if b, err := fs.ReadFile(h.Root, s); err == nil && strings.Contains(string(b), "ACTIVE") && !slices.Contains(f.Active, d.Name()) {
				f.Active = append(f.Active, d.Name())
			}
		}
	}
	modules, _ := fs.ReadFile(h.Root, "proc/modules") // none in some containers
	for line := range strings.Lines(string(modules)) {
		name, _, _ := strings.Cut(line, " ")
		f.PeerMemory = f.PeerMemory || name == "nvidia_peermem" || name == "nv_peer_mem"
		f.NVIDIA = f.NVIDIA || name == "nvidia"
	}
	if out, ok := h.Run(ctx, "fi_info", "-p", "efa"); ok {
		f.EFA = strings.Count(string(out), "provider: efa")
	} else {
		f.Missing = append(f.Missing, "fi_info")
	}
	if out, ok := h.Run(ctx, "ucx_info", "-d"); ok {
		f.Transports = []string{}
		for line := range strings.Lines(string(out)) {
			if _, t, ok := strings.Cut(line, "Transport:"); ok && !slices.Contains(f.Transports, strings.TrimSpace(t)) {
				f.Transports = append(f.Transports, strings.TrimSpace(t))
			}
		}
	} else {
		f.Missing = append(f.Missing, "ucx_info")
	}
	return f
}

func transportVariable(name string) bool {
	for _, p := range []string{"UCX_", "FI_", "NIXL_", "VLLM_NIXL_", "NCCL_IB_", "NCCL_SOCKET_"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// ParseEnv reads an environment: lines as env prints them, or /proc/PID/environ. Only variables about transfers are kept.
func ParseEnv(b []byte) map[string]string {
	env := map[string]string{}
	for line := range strings.FieldsFuncSeq(string(b), func(r rune) bool { return r == 0 || r == '\n' || r == '\r' }) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if ok && transportVariable(name) {
			env[name] = strings.Trim(value, `"'`)
		}
	}
	return env
}
