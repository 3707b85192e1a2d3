// Package internal_test checks the source tree itself: who may import whom, what pure packages may not
// touch, how large a file may grow, which words have no place in the project. Each rule carries its reason,
// so that a failure explains itself.
package internal_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/deps.txt anew")

const (
	module       = "github.com/tarik-kv/tarik"
	maxFileLines = 700 // lines of a Go file that is not a test
)

// purePackages decide and transform; whatever they need of the world is handed to them as a value.
// The name is the directory below internal/.
var purePackages = []string{"bodyedit", "gap", "kvp", "price", "sse", "turn", "wire"}

// impureImports are the doors to the outside. A path ending in "/" stands for everything below it.
var impureImports = map[string]string{
	"net":               "a decision has no I/O",
	"net/http":          "a decision has no I/O",
	"net/http/":         "a decision has no I/O",
	"os":                "a decision has no I/O and reads no environment",
	"os/":               "a decision has no I/O",
	"io/ioutil":         "a decision has no I/O",
	"syscall":           "a decision has no I/O",
	"log":               "what happened is returned, the caller logs it",
	"log/slog":          "what happened is returned, the caller logs it",
	"math/rand":         "randomness comes in as a value",
	"crypto/rand":       "randomness comes in as a value",
	"context":           "nothing in a pure package blocks",
	"runtime":           "the machine it runs on must not change a decision",
	"testing":           "for tests only",
	"encoding/gob":      "reflection over unknown data",
	"golang.org/x/sys/": "a decision has no I/O",
}

// impureCalls are package-level functions that pure packages may not use even though the package is allowed.
var impureCalls = map[string]struct {
	names []string
	why   string
}{
	"time": {
		[]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
		"time comes in as a value",
	},
	"math/rand/v2": {
		[]string{
			"ExpFloat64", "Float32", "Float64", "Int", "Int32", "Int32N", "Int64", "Int64N", "IntN", "N", "NormFloat64",
			"Perm", "Shuffle", "Uint", "Uint32", "Uint32N", "Uint64", "Uint64N", "UintN",
		},
		"the global source is seeded by the process; randomness comes in as a value",
	},
}

// directionRules say which imports would turn an arrow of the architecture around. Paths are below the module;
// a path covers the packages below it.
var directionRules = []struct{ from, never, why string }{
	{"internal/conv", "internal/router", "the router uses conversations, not the other way round"},
	{"internal/fleet", "internal/router", "the router uses the fleet, not the other way round"},
	{"internal/telemetry", "internal/router", "the router reports, telemetry does not ask"},
	{"internal/tenant", "internal/router", "the router asks who a client is, not the other way round"},
	{"internal/analyze", "internal/router", "tools use the pure packages only"},
	{"internal/sim", "internal/router", "tools use the pure packages only"},
	{"internal/bench", "internal/router", "tools use the pure packages only"},
	{"internal/doctor", "internal/router", "tools use the pure packages only"},
	{"internal/ui", "internal/router", "the page is served by the router"},
	{"internal/refengine", "internal/router", "the engine must stay an independent witness"},
	{"internal/refengine", "internal/turn", "the engine must stay an independent witness"},
	{"internal/refengine", "internal/conv", "the engine must stay an independent witness"},
	{"internal/refengine", "internal/fleet", "the engine must stay an independent witness"},
	{"internal/refengine", "internal/kvp", "the engine's reading of handles must not be the router's own"},
	{"internal/router", "internal/refengine", "the router knows engines by HTTP only"},
	{"internal/conv", "internal/fleet", "a conversation does not choose engines"},
	{"internal/refengine/model", "internal/refengine/engine", "model, then engine, then api"},
	{"internal/refengine/model", "internal/refengine/tokenizer", "model, then engine, then api"},
	{"internal/refengine/model", "internal/refengine/api", "model, then engine, then api"},
	{"internal/refengine/engine", "internal/refengine/api", "model, then engine, then api"},
	{"scripts", "internal", "a script sees what an operator sees"},
	{"internal", "cmd", "commands wire, nothing uses them"},
}

// routerJSON lists the files of the router that may use encoding/json. Bodies of clients and engines are
// never decoded and encoded again: that would round numbers, reorder members and lose unknown ones.
var routerJSON = map[string]string{
	"errors.go": "error objects that the router itself writes",
	"pass.go":   "the admin listener's own answers",
}

// vagueNames say where code is kept, not what it is about.
var vagueNames = []string{"util", "utils", "common", "types", "base", "manager", "helper", "helpers", "misc", "shared"}

// goFile is one parsed source file.
type goFile struct {
	path string // slash separated, below the root
	dir  string
	ast  *ast.File
	fset *token.FileSet
	test bool
	size int // lines
}

func (f *goFile) imports() []string {
	var paths []string
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic("BUG: the parser accepted an import path that is no string: " + spec.Path.Value)
		}
		paths = append(paths, p)
	}
	return paths
}

func (f *goFile) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(n.Pos()).Line)
}

// root of the checkout, seen from this package's directory.
const root = ".."

// walk calls f with the name (slash separated, below the root) of every file of the checkout that is not git's,
// built or fetched.
func walk(f func(name string) error) error {
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another test's temporary file, gone while we look
		}
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(strings.TrimPrefix(p, root), string(filepath.Separator)))
		if d.IsDir() && slices.Contains([]string{".git", ".device", "bin", "shared"}, name) {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		return f(name)
	})
}

var parseOnce = sync.OnceValues(func() ([]*goFile, error) {
	var files []*goFile
	err := walk(func(name string) error {
		if !strings.HasSuffix(name, ".go") || within(name, "tools") || strings.Contains(name, "testdata/") {
			return nil
		}
		src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, &goFile{
			path: name, dir: path.Dir(name), ast: parsed, fset: fset,
			test: strings.HasSuffix(name, "_test.go"), size: bytes.Count(src, []byte("\n")),
		})
		return nil
	})
	return files, err
})

func sources(t *testing.T) []*goFile {
	t.Helper()
	files, err := parseOnce()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func isPure(dir string) bool {
	name, ok := strings.CutPrefix(dir, "internal/")
	return ok && slices.Contains(purePackages, name)
}

// within reports whether the package or module path p is at or below dir.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func TestPurePackages(t *testing.T) {
	t.Parallel()
	for _, f := range sources(t) {
		if f.test || !isPure(f.dir) {
			continue
		}
		names := map[string]string{} // local name of an import → its path
		for i, p := range f.imports() {
			for bad, why := range impureImports {
				if p == bad || strings.HasSuffix(bad, "/") && strings.HasPrefix(p, bad) {
					t.Errorf("%s imports %s: %s", f.at(f.ast.Imports[i]), p, why)
				}
			}
			if own, ok := strings.CutPrefix(p, module+"/"); ok && !isPure(own) {
				t.Errorf("%s imports %s: a pure package imports pure packages only", f.at(f.ast.Imports[i]), p)
			} else if !ok && strings.Contains(strings.Split(p, "/")[0], ".") {
				t.Errorf("%s imports %s: a pure package needs the standard library only", f.at(f.ast.Imports[i]), p)
			}
			local := path.Base(p)
			if local == "v2" {
				local = path.Base(path.Dir(p))
			}
			if n := f.ast.Imports[i].Name; n != nil {
				local = n.Name
			}
			names[local] = p
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine: a pure package has no concurrency of its own", f.at(n))
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if !ok {
					break
				}
				rule, ok := impureCalls[names[x.Name]]
				if ok && slices.Contains(rule.names, n.Sel.Name) {
					t.Errorf("%s uses %s.%s: %s", f.at(n), x.Name, n.Sel.Name, rule.why)
				}
			}
			return true
		})
	}
}

func TestImportDirection(t *testing.T) {
	t.Parallel()
	for _, f := range sources(t) {
		if f.test {
			continue // a test may look at both ends of an arrow
		}
		for i, p := range f.imports() {
			own, ok := strings.CutPrefix(p, module+"/")
			if !ok {
				continue
			}
			for _, r := range directionRules {
				if within(f.dir, r.from) && within(own, r.never) {
					t.Errorf("%s imports %s: %s", f.at(f.ast.Imports[i]), p, r.why)
				}
			}
		}
	}
}

func TestRouterDecodesNoBodies(t *testing.T) {
	t.Parallel()
	for _, f := range sources(t) {
		if f.test || f.dir != "internal/router" || !slices.Contains(f.imports(), "encoding/json") {
			continue
		}
		if _, ok := routerJSON[path.Base(f.path)]; !ok {
			t.Errorf("%s imports encoding/json: bodies are spliced by bodyedit, not decoded; if this file only writes the router's own JSON, list it with its reason in routerJSON", f.path)
		}
	}
}

func TestPackageComments(t *testing.T) {
	t.Parallel()
	comments := map[string][]string{} // directory → files with a package comment
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		if f.ast.Doc != nil {
			comments[f.dir] = append(comments[f.dir], path.Base(f.path))
		} else if _, ok := comments[f.dir]; !ok {
			comments[f.dir] = nil
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(comments)) {
		if got := comments[dir]; len(got) != 1 {
			t.Errorf("%s has %d package comments %v, want exactly one: what it is, the model, concurrency, what it does not do", dir, len(got), got)
		}
	}
}

func TestPackageNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range sources(t) {
		name := f.ast.Name.Name
		for _, part := range []string{name, path.Base(f.dir)} {
			if slices.Contains(vagueNames, part) && !seen[f.dir] {
				seen[f.dir] = true
				t.Errorf("package %s (%s): name it after its concept", name, f.dir)
			}
		}
	}
}

func TestFileLength(t *testing.T) {
	t.Parallel()
	for _, f := range sources(t) {
		if !f.test && f.size > maxFileLines {
			t.Errorf("%s has %d lines, at most %d: split it by concept", f.path, f.size, maxFileLines)
		}
	}
}

// textRules are checked on every line of every text file. The patterns are put together here so that this file
// passes its own rule.
var textRules = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`(^|[^\w.*])/` + `(work|root|home)/`), "a path of one machine; use a relative path, a flag or an environment variable"},
	{regexp.MustCompile(`\b(proxy|sum)\.golang` + `\.org\b`), "where modules come from is the builder's business"},
	{regexp.MustCompile(`\b(pypi|registry\.npmjs|crates)\.` + `(org|io)\b`), "where packages come from is the builder's business"},
}

// openTask finds marks of unfinished work; each names the issue that will finish it.
var (
	openTask  = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)
	namedTask = regexp.MustCompile(`TO` + `DO\(#\d+\): \S`)
)

func TestText(t *testing.T) {
	t.Parallel()
	err := walk(func(name string) error {
		if path.Base(name) == "go.sum" {
			return nil
		}
		data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil || !utf8.Valid(data) {
			return nil // gone, or not text
		}
		// Recordings and conversations are data: what they quote is theirs, but paths of our machines are not.
		isData := strings.Contains(name, "testdata/") || within(name, "test/conversations")
		for i, line := range strings.Split(string(data), "\n") {
			for _, r := range textRules {
				if m := r.pattern.FindString(line); m != "" {
					t.Errorf("%s:%d: %q: %s", name, i+1, m, r.why)
				}
			}
			if !isData && openTask.MatchString(line) && !namedTask.MatchString(line) {
				t.Errorf("%s:%d: an open task has an issue number and a reason", name, i+1)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestLinks follows the links of documents to files of the checkout.
func TestLinks(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	err := walk(func(name string) error {
		if path.Ext(name) != ".md" {
			return nil
		}
		data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(data), -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(path.Join(path.Dir(name), target)))); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestReceiptsDocumented compares docs/receipts.md with the code: every field and every reason is explained there.
func TestReceiptsDocumented(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join(root, "docs", "receipts.md"))
	if err != nil {
		t.Fatal(err)
	}
	explained := func(at, name string) {
		if !bytes.Contains(doc, []byte("`"+name+"`")) {
			t.Errorf("%s: %q is not explained in docs/receipts.md", at, name)
		}
	}
	field := regexp.MustCompile(`json:"([a-z_]+)`)
	for _, f := range sources(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				kind, ok := n.Type.(*ast.Ident)
				if !ok || f.dir != "internal/turn" || f.test || kind.Name != "Reason" && kind.Name != "Arm" {
					break
				}
				for _, v := range n.Values {
					if lit, ok := v.(*ast.BasicLit); ok {
						explained(f.at(lit), strings.Trim(lit.Value, `"`))
					}
				}
			case *ast.TypeSpec:
				fields, ok := n.Type.(*ast.StructType)
				if !ok || f.dir != "internal/telemetry" || n.Name.Name != "Receipt" {
					break
				}
				for _, m := range fields.Fields.List {
					if m.Tag != nil {
						if name := field.FindStringSubmatch(m.Tag.Value); name != nil {
							explained(f.at(m), name[1])
						}
					}
				}
			}
			return true
		})
	}
}

// TestDependencies keeps docs/deps.txt: which modules the project needs directly, who imports them, and why.
// With -update it writes importers anew and keeps the reasons.
func TestDependencies(t *testing.T) {
	t.Parallel()
	direct, all := requirements(t)

	importers := map[string]map[string]bool{} // module → package directory → not only its tests
	for _, f := range sources(t) {
		for _, p := range f.imports() {
			mod := ""
			for _, m := range all {
				if within(p, m) && len(m) > len(mod) {
					mod = m
				}
			}
			if mod == "" {
				continue
			}
			if importers[mod] == nil {
				importers[mod] = map[string]bool{}
			}
			importers[mod][f.dir] = importers[mod][f.dir] || !f.test
		}
	}

	file := filepath.Join(root, "docs", "deps.txt")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	reasons := reasons(string(old))
	var b strings.Builder
	b.WriteString(depsHeader)
	for _, mod := range slices.Sorted(maps.Keys(importers)) {
		why := reasons[mod]
		if why == "" || why == "?" {
			t.Errorf("docs/deps.txt: %s has no reason: add a line with \"why:\" below it", mod)
			why = "?"
		}
		fmt.Fprintf(&b, "\n%s\n  why: %s\n", mod, why)
		var linked, tests []string
		for dir, code := range importers[mod] {
			if code {
				linked = append(linked, dir)
			} else {
				tests = append(tests, dir)
			}
		}
		for _, g := range []struct {
			label string
			dirs  []string
		}{{"code", linked}, {"tests", tests}} {
			if slices.Sort(g.dirs); len(g.dirs) > 0 {
				fmt.Fprintf(&b, "  %s: %s\n", g.label, strings.Join(g.dirs, " "))
			}
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(b.String(), string(old)); diff != "" {
		t.Errorf("docs/deps.txt is stale (-want +got); `make deps` writes it anew:\n%s", diff)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(importers)), direct); diff != "" {
		t.Errorf("go.mod's direct requirements differ from what is imported (-imported +go.mod):\n%s", diff)
	}
}

const depsHeader = `Modules the project imports directly, why each is there, and which packages use it.
"tests" means that only tests of that package do. Importers are written by ` + "`make deps`" + `; the reasons are
written by hand and checked to exist. Versions are in go.mod.
`

// reasons reads the hand-written part of docs/deps.txt: module → why.
func reasons(text string) map[string]string {
	found := map[string]string{}
	mod := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if why, ok := strings.CutPrefix(line, "  why: "); ok {
			found[mod] = why
		} else if line != "" && line[0] != ' ' {
			mod = line
		}
	}
	return found
}

// requirements returns the module paths of go.mod's require lines: those without "// indirect", and all of them.
func requirements(t *testing.T) (direct, all []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	requirement := regexp.MustCompile(`(?m)^(?:require\s+|\t)([^\s()]+) v\S+( // indirect)?$`)
	for _, m := range requirement.FindAllStringSubmatch(string(data), -1) {
		all = append(all, m[1])
		if m[2] == "" {
			direct = append(direct, m[1])
		}
	}
	slices.Sort(direct)
	return direct, all
}
