package edge

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// reserved are the headers by which routers, gateways and engines steer each other, as prefixes. From a client they
// mean nothing here: targets, ranks and parameters come from the router alone. None of them reaches an engine in any
// case; this is so that nothing on the way can be tempted.
var reserved = []string{
	"X-Tarik-", "X-Vllm-", "X-Prefill", "X-Decode-", "X-Decoder-", "X-Encode-", "X-Encoder-", "X-Kv-", "X-Data-Parallel-", "X-Dp-",
	"X-Gateway-", "X-Worker-", "X-Epp-",
}

// ValidHeader reports whether name is a header's name (RFC 9110 §5.6.2) that a client may send.
func ValidHeader(name string) bool {
	token := name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		letter := 'a' <= r|0x20 && r|0x20 <= 'z'
		return !letter && !('0' <= r && r <= '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
	return token && !isReserved(http.CanonicalHeaderKey(name))
}

// isReserved reports whether only a router or gateway may set a header. Underscores count as dashes, because
// somebody behind may take them for such.
func isReserved(name string) bool {
	if strings.Contains(name, "_") {
		name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
	}
	return slices.ContainsFunc(reserved, func(p string) bool { return strings.HasPrefix(name, p) })
}

// stripReserved removes what only a router or gateway may say and reports whether there was any.
func stripReserved(h http.Header) bool {
	before := len(h)
	maps.DeleteFunc(h, func(name string, _ []string) bool { return isReserved(name) })
	return len(h) < before
}
