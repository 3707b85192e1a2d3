package doctor

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// TestRoles: a verdict for every cell of role, connector and flag, on both engines.
func TestRoles(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for _, role := range []string{"kv_producer", "kv_consumer", "kv_both"} {
		for _, connector := range []string{"NixlConnector", "NixlPushConnector"} {
			for _, flag := range []bool{true, false} {
				for _, side := range []string{prefill, decode} {
					f := recorded(t, "0.33.0", "", "")
					kv := fmt.Sprintf(`{"kv_connector":%q,"kv_role":%q,"kv_connector_extra_config":{"bidirectional_kv_xfer":%v}}`, connector, role, flag)
					e := map[string]*EngineFacts{prefill: f.Prefill, decode: f.Decode}[side]
					k, err := ParseKVConfig([]byte(kv), "test")
					if err != nil {
						t.Fatal(err)
					}
					e.KV = k
					verdicts := ""
					for _, id := range []string{"connector", "roles", "flag-on-prefill", "flag-on-decode"} {
						c := checks()[indexOf(id)]
						v := verdict{Result{Findings: []Finding{}}}
						c.run(f, &v)
						for _, x := range v.r.Findings {
							if x.Subject == side {
								verdicts += " " + id + ":" + x.Severity.String()
							}
						}
					}
					got[fmt.Sprintf("%s %s %s %v", side, role, connector, flag)] = verdicts
				}
			}
		}
	}
	const push = " connector:error"
	want := map[string]string{
		"prefill kv_producer NixlConnector true":      "",
		"prefill kv_producer NixlConnector false":     " flag-on-prefill:error",
		"prefill kv_producer NixlPushConnector true":  push,
		"prefill kv_producer NixlPushConnector false": push + " flag-on-prefill:error",
		"prefill kv_consumer NixlConnector true":      " roles:warning",
		"prefill kv_consumer NixlConnector false":     " roles:warning flag-on-prefill:error",
		"prefill kv_consumer NixlPushConnector true":  push + " roles:warning",
		"prefill kv_consumer NixlPushConnector false": push + " roles:warning flag-on-prefill:error",
		"prefill kv_both NixlConnector true":          " roles:warning",
		"prefill kv_both NixlConnector false":         " roles:warning flag-on-prefill:error",
		"prefill kv_both NixlPushConnector true":      push + " roles:warning",
		"prefill kv_both NixlPushConnector false":     push + " roles:warning flag-on-prefill:error",
		"decode kv_producer NixlConnector true":       " roles:warning",
		"decode kv_producer NixlConnector false":      " roles:warning flag-on-decode:error",
		"decode kv_producer NixlPushConnector true":   push + " roles:warning",
		"decode kv_producer NixlPushConnector false":  push + " roles:warning flag-on-decode:error",
		"decode kv_consumer NixlConnector true":       "",
		"decode kv_consumer NixlConnector false":      " flag-on-decode:error",
		"decode kv_consumer NixlPushConnector true":   push,
		"decode kv_consumer NixlPushConnector false":  push + " flag-on-decode:error",
		"decode kv_both NixlConnector true":           " roles:warning",
		"decode kv_both NixlConnector false":          " roles:warning flag-on-decode:error",
		"decode kv_both NixlPushConnector true":       push + " roles:warning",
		"decode kv_both NixlPushConnector false":      push + " roles:warning flag-on-decode:error",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

func indexOf(id string) int {
	for i, c := range CheckIDs() {
		if c == id {
			return i
		}
	}
	panic("BUG: no check " + id)
}

func TestKVConfig(t *testing.T) {
	t.Parallel()
	f := func(extra string, flag bool, threshold int, ttl, lease float64) {
		t.Helper()
		k, err := ParseKVConfig([]byte(`{"kv_connector":"NixlConnector","kv_connector_extra_config":{`+extra+`}}`), "test")
		if err != nil {
			t.Fatal(err)
		}
		n, err := k.Threshold()
		if err != nil {
			n = -1
		}
		v := kvp.Version{Minor: 33}
		if got, want := []any{k.Flag(), n, k.TTL(), k.Lease(v)}, []any{flag, threshold, ttl, lease}; !cmp.Equal(got, want) {
			t.Errorf("%s: %v, want %v", extra, got, want)
		}
	}
	f("", false, 64, 480, 30)
	f(`"bidirectional_kv_xfer":"false","kv_recompute_threshold":"128"`, true, 128, 480, 30)
	f(`"bidirectional_kv_xfer":0,"kv_recompute_threshold":true,"decoder_kv_blocks_ttl":15`, false, 1, 15, 30)
	f(`"bidirectional_kv_xfer":[],"kv_recompute_threshold":null,"kv_lease_duration":120`, false, -1, 480, 120)
	f(`"bidirectional_kv_xfer":[0],"kv_recompute_threshold":"64.0"`, true, -1, 480, 30)
	f(`"bidirectional_kv_xfer":{"a":1},"kv_recompute_threshold":{}`, true, -1, 480, 30)
	for _, bad := range []string{"", "null", "[]", "{", "{} {}"} {
		if _, err := ParseKVConfig([]byte(bad), "test"); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	k, _ := ParseKVConfig([]byte(goodP), "test")
	if got := k.Lease(kvp.Version{Minor: 21}); got != 480 {
		t.Errorf("lease of 0.21: %g", got)
	}
}

func TestMeant(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"remote_pull_threshold": "kv_recompute_threshold", "kv_recompute_treshold": "kv_recompute_threshold",
		"decoder_kv_blocks_tll": "decoder_kv_blocks_ttl", "lookup": "", "backend": "backends",
	} {
		if got := meant(key, extraKeys); got != want {
			t.Errorf("meant(%q) = %q, want %q", key, got, want)
		}
	}
}

func TestRemovedKeysOfOldReleases(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]Severity{"0.31.0": OK, "0.32.0": Error} {
		f := recorded(t, version, "", "")
		f.Prefill.KV, _ = ParseKVConfig([]byte(with(goodP, `"kv_role"`, `"kv_rank":0,"kv_role"`)), "test")
		if got := result(t, NewReport(f), "config-keys").Severity; got != want {
			t.Errorf("kv_rank on %s: %s, want %s", version, got, want)
		}
	}
}

func TestHost(t *testing.T) {
	t.Parallel()
	got := hostOf(map[string]string{
		"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n", "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
		"proc/modules": "nvidia_peermem 16384 0 - Live\nnvidia 1 2\n",
	}, map[string]string{"ucx_info": "#      Transport: rc_mlx5\n#      Transport: tcp\n#      Transport: tcp\n"})
	want := &HostFacts{
		Devices: []string{"mlx5_0", "mlx5_1"}, Active: []string{"mlx5_0"}, Transports: []string{"rc_mlx5", "tcp"}, EFA: -1,
		PeerMemory: true, NVIDIA: true, Env: map[string]string{}, Missing: []string{"fi_info"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	f := recorded(t, "0.33.0", "", "")
	f.Host = got
	if c := result(t, NewReport(f), "host-rdma"); c.Severity != OK {
		t.Errorf("%+v", c)
	}
	f.Host = hostOf(nil, nil) // a machine with nothing
	if c := result(t, NewReport(f), "host-rdma"); c.Severity != Info {
		t.Errorf("%+v", c)
	}
	// EFA with UCX.
	f.Host = hostOf(map[string]string{"sys/class/infiniband/rdmap0s6/ports/1/state": "4: ACTIVE"}, map[string]string{"fi_info": "provider: efa\nprovider: efa\n"})
	f.Decode.Log = engineLog("NIXL INFO    _api.py:405 Backend UCX was instantiated")
	if c := result(t, NewReport(f), "host-rdma"); c.Severity != Warning || f.Host.EFA != 2 {
		t.Errorf("%+v", c)
	}
}

func TestParseEnv(t *testing.T) {
	t.Parallel()
	got := ParseEnv([]byte("HOME=/x\nexport UCX_TLS=\"rc,cuda\"\nSECRET=1\r\nFI_PROVIDER=efa\nUCX_BROKEN\n"))
	if diff := cmp.Diff(map[string]string{"UCX_TLS": "rc,cuda", "FI_PROVIDER": "efa"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestJudgeEnv(t *testing.T) {
	t.Parallel()
	f := func(env string, want int) {
		t.Helper()
		v := verdict{Result{Findings: []Finding{}}}
		judgeEnv(host, ParseEnv([]byte(env)), &v)
		if len(v.r.Findings) != want {
			t.Errorf("%q: %d findings, want %d", env, len(v.r.Findings), want)
		}
	}
	f("", 0)
	f("UCX_TLS=all", 0)
	f("UCX_TLS=^cuda_ipc", 1)
	f("UCX_TLS=^gdr_copy", 0)
	f("UCX_TLS=sm,self,tcp", 1)
	f("UCX_TLS=rc,sm,self,cuda_copy", 0)
	f("UCX_NET_DEVICES=mlx5_0:1,eth0", 0)
	f("UCX_NET_DEVICES=eth0,ens5", 1)
	f("UCX_NET_DEVICES=all", 0)
	f("NCCL_SOCKET_IFNAME=eth0", 0)
}
