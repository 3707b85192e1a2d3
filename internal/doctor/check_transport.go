package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

func transportChecks() []check {
	return []check{
		{"nixl", groupTransport, "NIXL is there, with the same backend on both", nixl, nil},
		{"transport-failures", groupTransport, "transfers succeed", transportFailures, nil},
		{"transport-rate", groupTransport, "transfers are as fast as RDMA is", transportRate, nil},
		{"transport-descriptors", groupTransport, "transfers are few large pieces", transportDescriptors, nil},
		{"transport-env", groupTransport, "the engines' environment does not force TCP", transportEnv, nil},
		{"transport-lanes", groupTransport, "UCX has chosen a fast transport", transportLanes, nil},
		{"host-rdma", groupTransport, "this machine has what RDMA needs", hostRDMA, nil},
	}
}

func nixl(f *Facts, v *verdict) {
	known := 0
	for _, e := range f.sides() {
		if e.Log == nil {
			continue
		}
		if e.Log.NoNIXL {
			v.find(Error, e.Role, "pip install nixl, in the engine's own environment: a version of 1.5 or newer", "NIXL could not be loaded").because("log: NIXL is not available")
		}
		if len(e.Log.Backends) > 0 {
			known++
		}
	}
	if known == 2 {
		p, d := slices.Sorted(slices.Values(f.Prefill.Log.Backends)), slices.Sorted(slices.Values(f.Decode.Log.Backends))
		if !slices.Equal(p, d) {
			v.find(Error, pair, `"backends":["UCX"] in kv_connector_extra_config on both, or ["LIBFABRIC"] on both (EFA)`, "the engines use different NIXL backends").
				because("prefill: %s", strings.Join(p, ", ")).because("decode: %s", strings.Join(d, ", "))
		}
		v.ok("%s", strings.Join(p, ", "))
		return
	}
	v.skip("the logs are not known (--prefill-log, --decode-log)")
}

func transportFailures(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	for _, e := range f.sides() {
		c := e.Before.Counters() // the probe's own failures are told elsewhere
		if c.Failed == 0 {
			continue
		}
		s := Warning
		if c.Failed >= 3 && c.Failed >= c.Reads/10 {
			s = Error
		}
		v.find(s, e.Role, "look for 'NIXL transfer failure' in its log (give it to doctor with --"+e.Role+"-log): the word behind it says which step fails",
			"%.0f of %.0f transfers failed since its start: each is a turn that was answered with 500 and computed anew", c.Failed, c.Failed+c.Reads).
			because("%s %.0f, of these notifications %.0f; successful READs %.0f", mFailed, c.Failed, c.NotifyFailed, c.Reads)
	}
	v.ok("none failed")
}

// slowTransfer is what TCP reaches and RDMA does not stay below, in bytes per second.
const slowTransfer = 1e9

func transportRate(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	var seen []string
	for _, e := range f.sides() {
		c, of := e.last().Counters(), "since its start"
		if e.Role == prefill && f.Probe != nil && len(f.Probe.Pulls) > 0 {
			if last := f.Probe.Pulls[len(f.Probe.Pulls)-1].P; last.Xfer > 0 && last.Bytes >= enoughBytes/4 {
				c, of = last, "in the probe's long pull"
			}
		}
		if c.Xfer <= 0 || c.Bytes < enoughBytes && of == "since its start" {
			continue
		}
		rate := c.Bytes / c.Xfer
		seen = append(seen, fmt.Sprintf("%s reads %.2f GB/s", e.Role, rate/1e9))
		if rate >= slowTransfer {
			continue
		}
		v.find(Warning, e.Role, "let UCX use RDMA: no UCX_TLS=tcp, no UCX_NET_DEVICES=eth0 in the engine's environment; `ucx_info -d` in its container must list rc_mlx5 (InfiniBand, RoCE) or srd (EFA), or cuda_ipc within one machine; on EFA \"backends\":[\"LIBFABRIC\"] on both",
			"KV moves at %.3f GB/s: that is TCP, not RDMA", rate/1e9).
			because("%.1f MB in %.2f s of transfers %s (%s, %s)", c.Bytes/1e6, c.Xfer, of, mBytes, mXfer).
			because("%.1f µs for a token", 1e6*c.Xfer/max(1, c.Pulled))
	}
	if len(seen) == 0 {
		v.skip("too little has been read to tell: less than %d MiB", enoughBytes>>20)
		return
	}
	v.ok("%s", strings.Join(seen, ", "))
}

// Signs of transfers that are bound by the number of their pieces. Measured on two H200 over NVLink, Qwen3-32B, blocks
// of 16 tokens: 8 descriptors of 32 KiB a token, 3.8 µs each, 85 % of the time spent in posting, 8.6 GB/s; with blocks
// of 128 tokens an eighth of the pieces and a seventh of the time.
const (
	manyPieces  = 1.0 // descriptors for one token
	postBound   = 0.5 // share of the transfer's time that is posting
	smallBlocks = 32  // tokens
	fewReads    = 3
)

func transportDescriptors(f *Facts, v *verdict) {
	if !up(f, v) {
		return
	}
	var seen []string
	for _, e := range f.sides() {
		c, bs := e.last().Counters(), e.last().BlockSize()
		if c.Reads < fewReads || c.Bytes < enoughBytes || c.Xfer <= 0 || c.Pulled <= 0 || c.Pieces <= 0 {
			continue
		}
		perToken, post := c.Pieces/c.Pulled, c.Post/c.Xfer
		seen = append(seen, fmt.Sprintf("%s: %.2f per token, posting is %.0f %% of the time", e.Role, perToken, 100*post))
		if post < postBound || perToken < manyPieces && c.Pieces/c.Reads < 2000 {
			continue
		}
		fix := "restart the engine when it is idle: its blocks are scattered; larger blocks (--block-size) scatter less"
		if bs > 0 && bs <= smallBlocks {
			fix = fmt.Sprintf("start both engines with --block-size 128: %d times fewer pieces", 128/bs)
			if !e.since(33) {
				fix += `; or, where the release has it, "enable_cross_layers_blocks":"True" on both with VLLM_USE_V2_MODEL_RUNNER=0`
			}
		}
		v.find(Warning, e.Role, fix, "transfers are bound by the number of their pieces, not by the link: blocks of %d tokens are %.1f descriptors of %.0f KiB for each token", bs, perToken, c.Bytes/c.Pieces/1024).
			because("%.0f descriptors for %.0f tokens in %.0f READs", c.Pieces, c.Pulled, c.Reads).
			because("%.0f %% of %.2f s is posting (%s), %.1f µs each, on the engine's own thread", 100*post, c.Xfer, mPost, 1e6*c.Post/c.Pieces).
			because("%.1f GB/s, %.0f µs for a token", c.Bytes/c.Xfer/1e9, 1e6*c.Xfer/c.Pulled)
	}
	if len(seen) == 0 {
		v.skip("too little has been read to tell: less than %d MiB", enoughBytes>>20)
		return
	}
	v.ok("%s", strings.Join(seen, "; "))
}

// Transports of UCX.
var (
	fastTransports = []string{"rc", "rc_x", "rc_v", "rc_mlx5", "rc_verbs", "dc", "dc_x", "dc_mlx5", "ud", "ud_x", "ud_v", "ud_mlx5", "ud_verbs", "ib", "srd", "cuda_ipc", "rocm_ipc", "gaudi_gdr", "all", "cuda", "rocm"}
	plainDevice    = regexp.MustCompile(`^(eth|en[opsx]|ens|bond|lo|veth|docker|cali|tun)[0-9a-z@]*$`)
)

func fast(name string) bool {
	name = strings.TrimSpace(name)
	return slices.Contains(fastTransports, name) || strings.HasPrefix(name, "gga")
}

// environment is what is known of the variables of an engine's process.
func (e *EngineFacts) environment() (env map[string]string, known bool) {
	env = map[string]string{}
	if e.Log != nil && len(e.Log.Env) > 0 {
		known = true
		for k, v := range e.Log.Env {
			env[k] = v
		}
	}
	if e.Env != nil {
		known = true
		for k, v := range e.Env {
			env[k] = v
		}
	}
	return env, known
}

func transportEnv(f *Facts, v *verdict) {
	known := 0
	for _, e := range f.sides() {
		env, ok := e.environment()
		if !ok {
			continue
		}
		known++
		judgeEnv(e.Role, env, v)
	}
	if f.Host != nil && len(f.Host.Env) > 0 {
		judgeEnv(host, f.Host.Env, v)
		known++
	}
	if known == 0 {
		v.skip("the engines' environment is not known (--prefill-env, --decode-env)")
		return
	}
	v.ok("nothing forces TCP")
}

func judgeEnv(subject string, env map[string]string, v *verdict) {
	const fix = "remove it, or name RDMA: a platform's webhook may have put it there after the manifest was written"
	if tls := env["UCX_TLS"]; tls != "" && !strings.HasPrefix(tls, "^") && !slices.ContainsFunc(strings.Split(tls, ","), fast) {
		v.find(Warning, subject, fix, "UCX may not use RDMA").because("UCX_TLS=%s", tls)
	}
	if strings.HasPrefix(env["UCX_TLS"], "^") && slices.ContainsFunc(strings.Split(env["UCX_TLS"][1:], ","), func(t string) bool { return t == "rc" || t == "ib" || t == "cuda_ipc" }) {
		v.find(Warning, subject, fix, "UCX must not use RDMA or CUDA IPC").because("UCX_TLS=%s", env["UCX_TLS"])
	}
	if devices := env["UCX_NET_DEVICES"]; devices != "" {
		plain := true
		for d := range strings.SplitSeq(devices, ",") {
			name, _, _ := strings.Cut(d, ":")
			plain = plain && plainDevice.MatchString(strings.TrimSpace(name))
		}
		if plain {
			v.find(Warning, subject, fix, "UCX is bound to a device that is no RDMA device").because("UCX_NET_DEVICES=%s", devices)
		}
	}
}

func transportLanes(f *Facts, v *verdict) {
	var seen []string
	for _, e := range f.sides() {
		if e.Log == nil || len(e.Log.Lanes) == 0 {
			continue
		}
		lanes := strings.Join(e.Log.Lanes, ", ")
		seen = append(seen, e.Role+": "+lanes)
		if !slices.ContainsFunc(e.Log.Lanes, fast) {
			v.find(Warning, e.Role, "let UCX use RDMA: see transport-rate", "UCX moves memory over %s", lanes).because("log: rma(%s)", lanes)
		}
	}
	if len(seen) == 0 {
		v.skip("no log in which UCX says what it uses: start an engine once with UCX_LOG_LEVEL=info")
		return
	}
	v.ok("%s", strings.Join(seen, "; "))
}

func hostRDMA(f *Facts, v *verdict) {
	h := f.Host
	if h == nil {
		v.skip("this machine was not looked at (--host, where an engine runs)")
		return
	}
	if len(h.Devices) > 0 && len(h.Active) == 0 {
		v.find(Warning, host, "look at `ibv_devinfo` and the cabling", "RDMA devices are there, and no port is up").because("/sys/class/infiniband: %s", strings.Join(h.Devices, ", "))
	}
	efa := slices.ContainsFunc(h.Devices, func(d string) bool { return strings.HasPrefix(d, "efa") || strings.HasPrefix(d, "rdmap") })
	if efa && h.EFA == 0 {
		v.find(Warning, host, "install the EFA software, and give the container the devices", "EFA devices are there, and libfabric finds none").because("fi_info -p efa lists nothing")
	}
	if efa || h.EFA > 0 {
		for _, e := range f.sides() {
			if e.Log != nil && slices.Contains(e.Log.Backends, "UCX") && !slices.Contains(e.Log.Backends, "LIBFABRIC") {
				v.find(Warning, e.Role, `"backends":["LIBFABRIC"] in kv_connector_extra_config on both`, "on EFA UCX may fall back to emulation in software").because("log: Backend UCX was instantiated; this machine has EFA")
			}
		}
	}
	if len(h.Active) > 0 && h.Transports != nil && !slices.ContainsFunc(h.Transports, fast) {
		v.find(Warning, host, "use a UCX built with verbs: the engine's container needs libibverbs and /dev/infiniband", "RDMA devices are there, and UCX does not see them").
			because("ucx_info -d: %s", strings.Join(h.Transports, ", "))
	}
	if len(h.Active) > 0 && h.NVIDIA && !h.PeerMemory {
		v.find(Info, host, "modprobe nvidia_peermem, unless UCX uses dma-buf", "nvidia_peermem is not loaded: RDMA may go through host memory").because("/proc/modules")
	}
	if len(h.Devices) == 0 && h.EFA <= 0 {
		v.find(Info, host, "", "this machine has no RDMA device: engines on it read by CUDA IPC from the same machine, and by TCP from others").because("/sys/class/infiniband is empty")
	}
	note := "devices: " + strings.Join(h.Active, ", ")
	if len(h.Missing) > 0 {
		note += "; not installed, so not asked: " + strings.Join(h.Missing, ", ")
	}
	v.ok("%s", note)
}
