package analyze

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

// maxNames bounds how many models and tenants are told apart. Those beyond it are one group, "other".
const maxNames = 4096

// names numbers the models and tenants of the input. 0 is no name, 1 is all beyond maxNames.
type names struct {
	mu    sync.Mutex
	index map[string]uint32
	list  []string
}

const (
	nameless  = 0
	otherName = 1
)

func newNames() *names {
	return &names{index: map[string]uint32{"": nameless}, list: []string{"", "other"}}
}

func (n *names) number(s string) uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i, ok := n.index[s]; ok {
		return i
	}
	if len(n.list) >= maxNames {
		return otherName
	}
	i := uint32(len(n.list))
	n.index[s] = i
	n.list = append(n.list, s)
	return i
}

func (n *names) name(i uint32) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.list[i]
}

// modelName makes a model's name fit to be shown: it is printed as it is in the log, but only as much and as plain
// as names of models are.
func modelName(raw []byte) string {
	const most = 80
	out := make([]byte, 0, most)
	for i := 0; i < len(raw) && len(out) < most; {
		r, n := utf8.DecodeRune(raw[i:])
		if r < utf8.RuneSelf && (isWord(byte(r)) || strings.ContainsRune("._:/@+-", r)) {
			out = append(out, byte(r))
		} else {
			out = append(out, '_')
		}
		i += n
	}
	return string(out)
}

// hashName is how a salted hash is shown.
func hashName(h uint64) string { return fmt.Sprintf("%012x", h>>16) }
