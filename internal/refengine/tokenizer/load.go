package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// maxVocab bounds ids, so that a broken file cannot make the tables huge. The largest published
// vocabularies have some 260 000 entries.
const maxVocab = 1 << 21

// tokenizerFile is the part of tokenizer.json that decides about ids and text.
type tokenizerFile struct {
	AddedTokens []struct {
		ID         int64  `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LeftStrip  bool   `json:"lstrip"`
		RightStrip bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    *part     `json:"normalizer"`
	PreTokenizer  *part     `json:"pre_tokenizer"`
	PostProcessor *part     `json:"post_processor"`
	Decoder       *part     `json:"decoder"`
	Model         modelPart `json:"model"`
}

type modelPart struct {
	Type          string            `json:"type"`
	Vocab         map[string]int64  `json:"vocab"`
	Merges        []json.RawMessage `json:"merges"` // "a b" or ["a", "b"]
	Dropout       *float64          `json:"dropout"`
	UnknownToken  *string           `json:"unk_token"`
	SubwordPrefix *string           `json:"continuing_subword_prefix"`
	WordSuffix    *string           `json:"end_of_word_suffix"`
	FuseUnknown   bool              `json:"fuse_unk"`
	ByteFallback  bool              `json:"byte_fallback"`
	WholePieces   bool              `json:"ignore_merges"`
}

// part is a normalizer, pre-tokenizer, post-processor or decoder: a type and the members of all of them.
type part struct {
	Type string `json:"type"`

	Normalizers   []part `json:"normalizers"` // Sequence
	PreTokenizers []part `json:"pretokenizers"`
	Processors    []part `json:"processors"`
	Decoders      []part `json:"decoders"`

	AddPrefixSpace   *bool           `json:"add_prefix_space"` // ByteLevel, Metaspace
	UseRegex         *bool           `json:"use_regex"`        // ByteLevel
	IndividualDigits bool            `json:"individual_digits"`
	Pattern          json.RawMessage `json:"pattern"` // Split, Replace: {"Regex": …} or {"String": …}
	Behavior         string          `json:"behavior"`
	Invert           bool            `json:"invert"`
	Prepend          string          `json:"prepend"`
	Content          string          `json:"content"` // Replace, Strip
	Start            int             `json:"start"`   // Strip
	Replacement      string          `json:"replacement"`
	PrependScheme    string          `json:"prepend_scheme"`
	Split            *bool           `json:"split"`

	Single        []templatePiece `json:"single"` // TemplateProcessing
	SpecialTokens map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`
}

type templatePiece struct {
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
}

// parseTokenizer builds a Tokenizer from the text of a tokenizer.json.
func parseTokenizer(data []byte) (*Tokenizer, error) {
	var file tokenizerFile
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	t := &Tokenizer{}
	if err := t.loadVocab(&file); err != nil {
		return nil, err
	}
	if err := t.loadMerges(&file.Model); err != nil {
		return nil, err
	}
	if err := t.loadNormalizer(file.Normalizer); err != nil {
		return nil, err
	}
	byteLevel, err := t.loadPreTokenizer(file.PreTokenizer)
	if err != nil {
		return nil, err
	}
	if !byteLevel {
		if err := t.loadSentencePieces(&file.Model); err != nil {
			return nil, err
		}
	}
	if err := t.loadDecoder(file.Decoder, byteLevel); err != nil {
		return nil, err
	}
	if err := t.loadPostProcessor(file.PostProcessor); err != nil {
		return nil, err
	}
	t.finish(byteLevel)
	return t, t.loadAdded(&file)
}

func (t *Tokenizer) loadVocab(file *tokenizerFile) error {
	m := &file.Model
	if m.Type != "BPE" && m.Type != "" {
		return fmt.Errorf("model of type %q, want BPE", m.Type)
	}
	if len(m.Vocab) == 0 {
		return errors.New("model has no vocabulary")
	}
	if m.Dropout != nil && *m.Dropout != 0 {
		return errors.New("model uses dropout: its encoding is random")
	}
	for _, affix := range []*string{m.SubwordPrefix, m.WordSuffix} {
		if affix != nil && *affix != "" {
			return fmt.Errorf("model with the affix %q is not supported", *affix)
		}
	}
	t.wholePieces = m.WholePieces
	size := int64(0)
	for token, id := range m.Vocab {
		if id < 0 || id >= maxVocab {
			return fmt.Errorf("token %q has id %d", token, id)
		}
		size = max(size, id+1)
	}
	for _, tok := range file.AddedTokens {
		if tok.ID < 0 || tok.ID >= maxVocab {
			return fmt.Errorf("added token %q has id %d", tok.Content, tok.ID)
		}
		size = max(size, tok.ID+1)
	}
	t.vocab = make([]string, size)
	t.special = make([]bool, size)
	t.index = make(map[string]int32, len(m.Vocab)+len(file.AddedTokens))
	for token, id := range m.Vocab {
		t.vocab[id] = token
		t.index[token] = int32(id)
	}
	return nil
}

func (t *Tokenizer) loadMerges(m *modelPart) error {
	t.bpe.merges = make(map[pair]merge, len(m.Merges))
	for rank, raw := range m.Merges {
		var left, right string
		var both string
		var parts []string
		switch {
		case json.Unmarshal(raw, &parts) == nil && len(parts) == 2:
			left, right = parts[0], parts[1]
		case json.Unmarshal(raw, &both) == nil:
			var ok bool
			if left, right, ok = strings.Cut(both, " "); !ok {
				return fmt.Errorf("merge %d is %q, want two tokens", rank, both)
			}
		default:
			return fmt.Errorf("merge %d is not two tokens", rank)
		}
		if err := t.addMerge(rank, left, right); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tokenizer) addMerge(rank int, left, right string) error {
	l, ok1 := t.index[left]
	r, ok2 := t.index[right]
	id, ok3 := t.index[left+right]
	if !ok1 || !ok2 || !ok3 {
		return fmt.Errorf("merge %d joins %q and %q, which or whose result is not in the vocabulary", rank, left, right)
	}
	t.bpe.merges[pairOf(l, r)] = merge{rank: int32(rank), id: id} // of two rules for one pair the last counts
	return nil
}

func (t *Tokenizer) loadNormalizer(p *part) error {
	if p == nil {
		return nil
	}
	steps := []part{*p}
	if p.Type == "Sequence" {
		steps = p.Normalizers
	}
	for _, step := range steps {
		switch step.Type {
		case "NFC":
			if t.pieces != nil {
				return errors.New("normalizer NFC after Prepend or Replace is not supported")
			}
			t.normalize = norm.NFC.String
		case "Prepend":
			if step.Prepend != metaspace {
				return fmt.Errorf("normalizer Prepend of %q is not supported", step.Prepend)
			}
			t.needPieces().prefix = prefixEvenTwice
		case "Replace":
			if patternText(step.Pattern) != " " || step.Content != metaspace {
				return fmt.Errorf("normalizer Replace of %s by %q is not supported", step.Pattern, step.Content)
			}
			t.needPieces().replace = true
		default:
			return fmt.Errorf("normalizer %q is not supported", step.Type)
		}
	}
	return nil
}

func (t *Tokenizer) needPieces() *sentencePieces {
	if t.pieces == nil {
		t.pieces = &sentencePieces{unknown: -1}
	}
	return t.pieces
}

// patternText returns the string of {"String": s} or {"Regex": s}.
func patternText(raw json.RawMessage) string {
	var p struct{ String, Regex string }
	if json.Unmarshal(raw, &p) != nil {
		return ""
	}
	return p.String + p.Regex
}

// loadPreTokenizer reports whether the vocabulary is one of bytes; otherwise it is one of characters.
func (t *Tokenizer) loadPreTokenizer(p *part) (byteLevel bool, err error) {
	if p == nil {
		return false, nil
	}
	steps := []part{*p}
	if p.Type == "Sequence" {
		steps = p.PreTokenizers
	}
	for _, step := range steps {
		if byteLevel {
			return false, fmt.Errorf("pre-tokenizer %q after ByteLevel is not supported", step.Type)
		}
		switch step.Type {
		case "Digits":
			if step.IndividualDigits {
				t.splitters = append(t.splitters, splitterFunc(splitDigits))
			} else {
				t.splitters = append(t.splitters, splitterFunc(splitDigitRuns))
			}
		case "Split":
			s, err := splitOf(step)
			if err != nil {
				return false, err
			}
			t.splitters = append(t.splitters, s)
		case "ByteLevel":
			byteLevel = true
			t.prefixSpace = step.AddPrefixSpace == nil || *step.AddPrefixSpace
			if t.prefixSpace && len(t.splitters) > 0 {
				return false, errors.New("pre-tokenizer ByteLevel with add_prefix_space after another is not supported")
			}
			if step.UseRegex == nil || *step.UseRegex {
				t.splitters = append(t.splitters, splitterFunc(splitGPT2))
			}
		case "Metaspace":
			if err := t.loadMetaspace(step); err != nil {
				return false, err
			}
		default:
			return false, fmt.Errorf("pre-tokenizer %q is not supported", step.Type)
		}
	}
	if !byteLevel && len(t.splitters) > 0 {
		return false, errors.New("pre-tokenizer splits the text but has no ByteLevel step")
	}
	if byteLevel && t.pieces != nil {
		return false, errors.New("ByteLevel together with Metaspace, Prepend or Replace is not supported")
	}
	return byteLevel, nil
}

// splitOf returns the splitter of a Split step. For a pattern that matches everything it makes no
// difference whether matches or the gaps between them are taken away, and how they are put together.
func splitOf(step part) (splitter, error) {
	pattern := patternText(step.Pattern)
	s, ok := knownPattern(pattern)
	if !ok {
		return nil, fmt.Errorf("pre-tokenizer Split with the unknown pattern %q", pattern)
	}
	if step.Behavior == "Isolated" && !step.Invert || step.Behavior == "Removed" && step.Invert {
		return s, nil
	}
	return nil, fmt.Errorf("pre-tokenizer Split with behavior %q, invert %t", step.Behavior, step.Invert)
}

func (t *Tokenizer) loadMetaspace(step part) error {
	if step.Replacement != metaspace && step.Replacement != "" {
		return fmt.Errorf("pre-tokenizer Metaspace with replacement %q", step.Replacement)
	}
	p := t.needPieces()
	p.replace = true
	p.split = step.Split == nil || *step.Split
	scheme := step.PrependScheme
	if scheme == "" {
		scheme = "always"
		if step.AddPrefixSpace != nil && !*step.AddPrefixSpace {
			scheme = "never"
		}
	}
	switch scheme {
	case "always":
		p.prefix = prefixAlways
	case "first":
		p.prefix = prefixFirst
	case "never":
		p.prefix = prefixNever
	default:
		return fmt.Errorf("pre-tokenizer Metaspace with prepend_scheme %q", scheme)
	}
	return nil
}

func (t *Tokenizer) loadSentencePieces(m *modelPart) error {
	p := t.needPieces()
	if m.UnknownToken != nil {
		id, ok := t.index[*m.UnknownToken]
		if !ok {
			return fmt.Errorf("unknown token %q is not in the vocabulary", *m.UnknownToken)
		}
		p.unknown = id
	}
	p.fuseUnks = m.FuseUnknown
	for b := range p.byteID {
		p.byteID[b] = -1
		if id, ok := t.index[fmt.Sprintf("<0x%02X>", b)]; ok && m.ByteFallback {
			p.byteID[b] = id
		}
	}
	return nil
}

func (t *Tokenizer) loadDecoder(p *part, byteLevel bool) error {
	if p == nil {
		return nil
	}
	steps := []part{*p}
	if p.Type == "Sequence" {
		steps = p.Decoders
	}
	for _, step := range steps {
		switch {
		case step.Type == "ByteLevel" && byteLevel:
		case step.Type == "ByteFallback" && !byteLevel, step.Type == "Fuse":
		case step.Type == "Replace" && !byteLevel && patternText(step.Pattern) == metaspace && step.Content == " ":
		case step.Type == "Strip" && !byteLevel && step.Content == " ":
			t.dropLeadingSpace = step.Start > 0
		case step.Type == "Metaspace" && !byteLevel:
			t.dropLeadingSpace = step.PrependScheme != "never" && (step.AddPrefixSpace == nil || *step.AddPrefixSpace)
		default:
			return fmt.Errorf("decoder %q is not supported", step.Type)
		}
	}
	return nil
}

func (t *Tokenizer) loadPostProcessor(p *part) error {
	if p == nil {
		return nil
	}
	steps := []part{*p}
	if p.Type == "Sequence" {
		steps = p.Processors
	}
	for _, step := range steps {
		switch step.Type {
		case "ByteLevel": // changes offsets only
		case "TemplateProcessing":
			if err := t.loadWrapping(step); err != nil {
				return err
			}
		default:
			return fmt.Errorf("post-processor %q is not supported", step.Type)
		}
	}
	return nil
}

// loadWrapping reads what a template puts before and after a single sequence.
func (t *Tokenizer) loadWrapping(step part) error {
	seen := false
	for _, piece := range step.Single {
		if piece.Sequence != nil {
			if seen {
				return errors.New("post-processor repeats the sequence")
			}
			seen = true
			continue
		}
		if piece.SpecialToken == nil {
			return errors.New("post-processor has a piece that is neither a sequence nor a token")
		}
		ids := step.SpecialTokens[piece.SpecialToken.ID].IDs
		if len(ids) == 0 {
			return fmt.Errorf("post-processor does not say what %q is", piece.SpecialToken.ID)
		}
		for _, id := range ids {
			if id < 0 || id >= int64(len(t.vocab)) {
				return fmt.Errorf("post-processor adds id %d, which is not in the vocabulary", id)
			}
			if seen {
				t.suffix = append(t.suffix, int32(id))
			} else {
				t.prefix = append(t.prefix, int32(id))
			}
		}
	}
	return nil
}

// finish fills the tables that follow from the vocabulary.
func (t *Tokenizer) finish(byteLevel bool) {
	t.raw = make([]string, len(t.vocab))
	for b := range t.byteID {
		t.byteID[b] = -1
		if id, ok := t.index[string(byteRune[b])]; ok && byteLevel {
			t.byteID[b] = id
		}
	}
	for id, token := range t.vocab {
		t.raw[id] = token
		if byteLevel {
			if raw, ok := unspellBytes(token); ok {
				t.raw[id] = raw
			}
			continue
		}
		if b, ok := byteToken(token); ok && t.pieces.byteID[b] == int32(id) {
			t.raw[id] = string([]byte{b})
			continue
		}
		t.raw[id] = strings.ReplaceAll(token, metaspace, " ")
	}
}

func (t *Tokenizer) loadAdded(file *tokenizerFile) error {
	var verbatim, normalized []addedToken
	for _, tok := range file.AddedTokens {
		if tok.Content == "" {
			return fmt.Errorf("added token with id %d is empty", tok.ID)
		}
		id := int32(tok.ID)
		spelling := tok.Content
		if tok.Normalized && t.normalize != nil {
			spelling = t.normalize(spelling)
		}
		t.index[tok.Content] = id
		t.addSpelling(id, spelling, tok.Special)
		added := addedToken{
			text: spelling, id: id,
			leftStrip: tok.LeftStrip, rightStrip: tok.RightStrip, wholeWord: tok.SingleWord,
		}
		if !tok.Normalized {
			verbatim = append(verbatim, added)
			continue
		}
		normalized = append(normalized, added)
	}
	t.added = addedTokens{verbatim: newMatcher(verbatim), normalized: newMatcher(normalized)}
	return nil
}

// addSpelling makes id stand for an added token.
func (t *Tokenizer) addSpelling(id int32, content string, special bool) {
	t.vocab[id] = content
	t.index[content] = id
	t.special[id] = special
	t.raw[id] = content
	if t.pieces == nil {
		if raw, ok := unspellBytes(content); ok {
			t.raw[id] = raw
		}
	}
}
