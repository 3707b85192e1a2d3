package model

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
)

// maxHeaderBytes is the format's own limit on a safetensors header.
const maxHeaderBytes = 100 << 20

// safetensors is an open checkpoint of one or more files.
//
// Files are read, not mapped: the weights are repacked anyway, and a mapped file that somebody truncates kills the process.
type safetensors struct {
	files   []*os.File
	tensors map[string]stTensor
}

// stTensor is where a tensor lies in its file.
type stTensor struct {
	src   io.ReaderAt
	dtype string
	shape []int
	at    int64 // in the file
}

// stWidths are the bytes of a value, for the formats that weights come in.
var stWidths = map[string]int64{"BF16": 2, "F16": 2, "F32": 4}

// openSafetensors opens a directory's checkpoint: the files that model.safetensors.index.json names, or model.safetensors.
func openSafetensors(dir string) (*safetensors, error) {
	st := &safetensors{tensors: map[string]stTensor{}}
	names, owner, err := checkpointFiles(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := st.open(filepath.Join(dir, name), name, owner); err != nil {
			st.close()
			return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, name), err)
		}
	}
	for tensor, file := range owner {
		if _, ok := st.tensors[tensor]; !ok {
			st.close()
			return nil, fmt.Errorf("tensor %s is not in %s, where the index says it is", tensor, file)
		}
	}
	return st, nil
}

// checkpointFiles returns the files to read, in the index's order of tensors, and the file of each tensor (nil: there is no index).
func checkpointFiles(dir string) (names []string, owner map[string]string, err error) {
	path := filepath.Join(dir, "model.safetensors.index.json")
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return []string{"model.safetensors"}, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(index.WeightMap) == 0 {
		return nil, nil, fmt.Errorf("read %s: no weight_map", path)
	}
	seen := map[string]bool{}
	for tensor, file := range index.WeightMap {
		if file != filepath.Base(file) || !filepath.IsLocal(file) {
			return nil, nil, fmt.Errorf("read %s: tensor %s is in %q, which is not a file of this directory", path, tensor, file)
		}
		if !seen[file] {
			seen[file] = true
			names = append(names, file)
		}
	}
	return names, index.WeightMap, nil
}

func (st *safetensors) open(path, name string, owner map[string]string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	st.files = append(st.files, f)
	info, err := f.Stat()
	if err != nil {
		return err
	}
	tensors, err := parseSafetensors(f, info.Size())
	if err != nil {
		return err
	}
	for tensor, t := range tensors {
		if owner != nil && owner[tensor] != name {
			continue // the index prefers another file, or leaves it out
		}
		st.tensors[tensor] = t
	}
	return nil
}

func (st *safetensors) close() {
	for _, f := range st.files {
		f.Close()
	}
}

// parseSafetensors reads a file's header: eight bytes of length, then JSON that gives each tensor's format, shape and place. Every
// tensor returned lies within the file and is as long as its shape says.
func parseSafetensors(src io.ReaderAt, size int64) (map[string]stTensor, error) {
	var prefix [8]byte
	if _, err := src.ReadAt(prefix[:], 0); err != nil {
		return nil, fmt.Errorf("header length: %w", err)
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	if length > maxHeaderBytes || int64(length) > size-8 {
		return nil, fmt.Errorf("header of %d bytes in a file of %d", length, size)
	}
	raw := make([]byte, length)
	if _, err := src.ReadAt(raw, 8); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	var header map[string]json.RawMessage
	if err := json.Unmarshal(raw, &header); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	begin := 8 + int64(length)
	tensors := make(map[string]stTensor, len(header))
	for name, entry := range header {
		if name == "__metadata__" {
			continue
		}
		t, err := parseEntry(entry, size-begin)
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", name, err)
		}
		t.src, t.at = src, begin+t.at
		tensors[name] = t
	}
	return tensors, nil
}

// parseEntry reads one tensor's entry in a file with `size` bytes of data.
func parseEntry(raw json.RawMessage, size int64) (stTensor, error) {
	var e struct {
		Dtype   string  `json:"dtype"`
		Shape   []int64 `json:"shape"`
		Offsets []int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return stTensor{}, err
	}
	width, ok := stWidths[e.Dtype]
	if !ok {
		return stTensor{}, fmt.Errorf("number format %q is not supported, only BF16, F16 and F32", e.Dtype)
	}
	if len(e.Offsets) != 2 || e.Offsets[0] < 0 || e.Offsets[1] < e.Offsets[0] || e.Offsets[1] > size {
		return stTensor{}, fmt.Errorf("data_offsets %v in %d bytes of data", e.Offsets, size)
	}
	t := stTensor{dtype: e.Dtype, at: e.Offsets[0]}
	bytes := width
	for _, d := range e.Shape {
		if d < 0 || d > math.MaxInt32 || (d > 0 && bytes > math.MaxInt64/d) {
			return stTensor{}, fmt.Errorf("shape %v", e.Shape)
		}
		bytes *= d
		t.shape = append(t.shape, int(d))
	}
	if bytes != e.Offsets[1]-e.Offsets[0] {
		return stTensor{}, fmt.Errorf("%d bytes at %v, want %d for %s %v", e.Offsets[1]-e.Offsets[0], e.Offsets, bytes, e.Dtype, e.Shape)
	}
	return t, nil
}

func (st *safetensors) all() []string {
	names := make([]string, 0, len(st.tensors))
	for name := range st.tensors {
		names = append(names, name)
	}
	return names
}

func (st *safetensors) find(name string) (tensor, bool) {
	t, ok := st.tensors[name]
	if !ok {
		return tensor{}, false
	}
	rowValues := 1
	if len(t.shape) > 1 {
		rowValues = t.shape[len(t.shape)-1]
	}
	return tensor{shape: t.shape, bf16: t.dtype == "BF16", read: func(first int, dst []float32) error {
		if len(dst) == 0 {
			return nil
		}
		width := stWidths[t.dtype]
		raw := make([]byte, int64(len(dst))*width)
		if _, err := t.src.ReadAt(raw, t.at+int64(first)*int64(rowValues)*width); err != nil {
			return err
		}
		switch t.dtype {
		case "BF16":
			for i := range dst {
				dst[i] = fromBF16(binary.LittleEndian.Uint16(raw[2*i:]))
			}
		case "F16":
			for i := range dst {
				dst[i] = fromF16(binary.LittleEndian.Uint16(raw[2*i:]))
			}
		default:
			for i := range dst {
				dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
			}
		}
		return nil
	}}, true
}
