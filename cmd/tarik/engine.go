package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/tarik-kv/tarik/internal/local"
)

// engineFlags are what engine and up have in common.
type engineFlags struct {
	model, as string
	o         local.EngineOptions
}

func (f *engineFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.model, "model", "", "Hugging Face directory or .gguf file of a Llama-family model (default: a tiny built-in one)")
	c.Flags().StringVar(&f.as, "as", "vllm-0.33", "vLLM version to imitate, on the wire and in behaviour: vllm-0.25, vllm-0.32, vllm-0.33, …")
	c.Flags().StringVar(&f.o.Name, "served-model-name", "", "the model's name for clients (default: from --model)")
	c.Flags().IntVar(&f.o.BlockSize, "block-size", 16, "tokens in a KV block")
	c.Flags().IntVar(&f.o.KVTokens, "kv-tokens", 0, "size of the KV pool in tokens (default: what fits into 1 GiB, at most 262144)")
	c.Flags().IntVar(&f.o.MaxLen, "max-model-len", 0, "longest prompt and reply in tokens (default: the model's, or what the pool holds)")
	c.Flags().IntVar(&f.o.Batch, "max-num-batched-tokens", 2048, "token budget of one step")
}

func engineCommand() *cobra.Command {
	var (
		f            engineFlags
		logs         logFlags
		role, kv     string
		noKV, faults bool
	)
	c := &cobra.Command{
		Use:   "engine --role prefill|decode",
		Short: "Run a reference engine: vLLM's behaviour in small, on any CPU",
		Long: `Runs one reference engine: a real transformer on the CPU behind vLLM's HTTP interface, with vLLM's
paged KV, prefix cache, continuous batching and bidirectional KV transfer between two such engines.
It also does what vLLM does wrong; docs/engine.md says what that is.

--kv-transfer-config takes vLLM's own JSON. Without it the role's usual one is used, with the return
path on. The side channel is told and bound by VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT, as with vLLM.`,
		Example: `  tarik engine --role prefill --listen 127.0.0.1:8100
  tarik engine --role decode  --listen 127.0.0.1:8200 --as vllm-0.32
  tarik serve --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := logs.logger(c.ErrOrStderr())
			if err != nil {
				return err
			}
			o := f.o
			o.As, o.Log, o.FaultHdr = f.as, log, faults
			switch {
			case noKV:
			case kv != "":
				o.KV = []byte(kv)
			case role == "prefill":
				o.KV = []byte(`{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_connector_extra_config":{"bidirectional_kv_xfer":true}}`)
			case role == "decode":
				o.KV = []byte(`{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_connector_extra_config":{"bidirectional_kv_xfer":true}}`)
			}
			if role != "prefill" && role != "decode" {
				return &usageError{fmt.Errorf("--role %q: want prefill or decode", role)}
			}
			o.SideHost = os.Getenv("VLLM_NIXL_SIDE_CHANNEL_HOST")
			if s := os.Getenv("VLLM_NIXL_SIDE_CHANNEL_PORT"); s != "" {
				if o.SidePort, err = strconv.Atoi(s); err != nil {
					return &usageError{fmt.Errorf("VLLM_NIXL_SIDE_CHANNEL_PORT=%q: want a port number", s)}
				}
			}
			w, err := local.Load(f.model)
			if err != nil {
				return err
			}
			e, err := local.StartEngine(w, o)
			if err != nil {
				return err
			}
			log.Info("ready", "role", role, "url", e.URL(), "model", w.Name, "engine_id", e.Core.ID(), "side_channel", e.Core.SideChannel())
			<-c.Context().Done()
			return e.Close()
		},
	}
	c.Flags().StringVar(&role, "role", "", "prefill or decode; it chooses the default --kv-transfer-config, requests choose the rest")
	c.Flags().StringVar(&f.o.Listen, "listen", "127.0.0.1:0", "address of the HTTP side; port 0 is any free one")
	c.Flags().StringVar(&kv, "kv-transfer-config", "", "vLLM's JSON, e.g. '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_producer\",…}'")
	c.Flags().BoolVar(&noKV, "no-kv-transfer", false, "run without any connector, as a plain server")
	c.Flags().BoolVar(&f.o.NoPrefixCaching, "no-enable-prefix-caching", false, "run without prefix cache")
	c.Flags().BoolVar(&f.o.NoTokenDetails, "no-prompt-tokens-details", false, "run as without vLLM's --enable-prompt-tokens-details")
	c.Flags().BoolVar(&f.o.NoScaleOut, "no-scale-out", false, "run as without vLLM's --enable-scale-out: no render endpoints")
	c.Flags().BoolVar(&faults, "fault-header", false, "let requests ask for faults by the header X-Refengine-Fault (docs/engine.md)")
	f.add(c)
	logs.add(c)
	return c
}
